"""State machine of the publishing protocol in ``sla_pipeline/kafka/takeover.py``, with its faults.

Two publishers take the relay's steps under the relay's names, while Postgres and Kafka act and fail. ``world.py`` has
the state and its properties.

One move is one effect that another party can observe: a statement in Postgres, a request that Kafka carries out.
Between any two moves any other may happen. Where reality is uncertain, the model allows more than can happen: a
publisher that lost its lock never detects it, a restore may bring back any older rows with any older ``published_seq``.
Crashes, lost locks, lost and late replies are unlimited; the number of takeovers bounds them. A crash stands for every
exception too, because the relay does the same after one: it discards everything, closes nothing, begins again. The
model has no lock: it may be lost at any moment, so it may be taken at any moment.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from sla_pipeline_tests.unit.protocol.repair import begun, can_go_on, compared, noted, repaired, sending, sent
from sla_pipeline_tests.unit.protocol.world import (
    IDLE,
    NO_RECORD,
    ZERO,
    Publisher,
    Repair,
    Row,
    Transaction,
    World,
    listed,
)

__all__ = ["Model", "Protocol", "Surroundings"]


@dataclass(frozen=True)
class Protocol:
    """Rules of the protocol as built; each field with another value is a shortcut that omits one rule."""

    fence_before_progress: bool = True
    one_transaction_per_producer: bool = True
    takeover_after_failed_commit: bool = True
    position_in_kafka: bool = True
    end_from_uncommitted_reader: bool = True
    empty_topic_refused: bool = True
    digest_of: Literal["row", "ticket", "nothing"] = "row"
    next_seq_after_progress: bool = True
    published_seq_before_progress: bool = True
    published_seq_checked: bool = True
    failed_delivery_ends_takeover: bool = True
    progress_checked_before_sending_again: bool = True
    """Recovery sends missing events only while, behind the fence, the newest progress record is the one it knows."""
    progress_of_delivered: bool = True
    """The committed position is that of the last record queued, not of the last one read."""
    hanging_ended: bool = True
    """An unended transaction is searched for behind the fence, and aborted where nothing of it is visible."""
    session_of_the_lock: bool = True
    """Every statement goes through the session that took the lock, so a restore of Postgres ends them all."""

    @cached_property
    def steps(self) -> tuple[str, ...]:
        """Steps in their order."""
        middle = ("fenced", "progress_read") if self.fence_before_progress else ("progress_read", "fenced")
        return (
            "idle",
            "locked",
            "connected",
            *middle,
            "rows_read",
            "begun",
            "produced",
            "flushed",
            "committed",
            "advanced",
        )


@dataclass(frozen=True)
class Surroundings:
    """Bounds of the search, and the disasters in it."""

    tickets: str = "abc"
    batch_size: int = 2
    takeover_count: int = 3
    restore_count: int = 0
    recreation_count: int = 0
    """Deletions of the progress topic, each followed by the creation of an empty one."""
    record_zero_rewritten: Literal["before the first event", "always"] = "before the first event"
    """Time at which ``migrate`` writes the record with sequence 0 into an empty progress topic."""
    tail_loss_count: int = 0
    """Losses of the newest record of the progress topic, by a broker that loses acknowledged records."""
    marker_loss_count: int = 0
    """Transactions whose end markers the broker drops: all, those of the events, or that of the progress record."""
    recoveries: bool = False
    """``sla-pipeline recover`` may run at any moment; each run takes one of the takeovers."""
    event_topic_recreation_count: int = 0
    """Deletions and re-creations of the event topic, with the events of an open transaction on it."""
    recoveries_overlap: bool = False
    """A second recovery may begin while the first is paused, and alternate with it, each as if it held the lock."""
    expiry_count: int = 0
    """Most of the oldest events that may expire."""
    stable_offset_lags: bool = False
    """A committed record may stay hidden from read_committed clients for a while, even after a fence."""


Moves = Iterator[tuple[str, World]]


@dataclass(frozen=True)
class Model:
    """All moves of a world, each with a label ``actor: action``."""

    protocol: Protocol = Protocol()
    surroundings: Surroundings = Surroundings()
    shortened: bool = True
    """A step without visible effect (``connected``, ``begun``) follows at once; indistinguishable worlds are one."""
    names_exchangeable: bool = False
    """Worlds that differ only in the publishers' names are one.

    This halves the search, but in a history the names may change sides.
    """

    def successors(self, world: World) -> Moves:
        """Yield every move that is possible now."""
        if world.refusal:
            # A later cycle that retries is a publisher without memory, as after a crash at the same place.
            return
        for index, me in enumerate(world.publishers):
            if self.shortened and (me.step == "locked" or (me.step == "rows_read" and me.batch)):
                yield from self.steps_of(world, index)
                return
        for label, after in (*self._postgres(world), *self._kafka(world), *self.recovery(world)):
            yield label, self._settled(after)
        for index, me in enumerate(world.publishers):
            if me != IDLE:
                yield f"{'AB'[index]}: crashes", self._settled(world.with_publisher(index, IDLE))
            yield from self.steps_of(world, index)

    def steps_of(self, world: World, index: int) -> Moves:
        """Yield the ways in which one publisher can take its next step; the one without a fault first."""
        for label, after in self._step(world, index, world.publishers[index]):
            yield f"{'AB'[index]}: {label}", self._settled(after)

    def _settled(self, world: World) -> World:
        """Return the same world without differences that no property can show."""
        if not self.shortened or world.refusal:
            return world
        for index, me in enumerate(world.publishers):
            if me.step == "idle" or (me.epoch == world.epoch and me.era == world.era):
                continue
            writing = me.step in ("begun", "produced", "flushed") or (me.step == "rows_read" and bool(me.batch))
            if me.epoch != world.epoch if writing else self._session_ended(world, me):
                world = world.with_publisher(index, IDLE)  # it can only stop now
            elif me.epoch not in (0, world.epoch):
                world = world.with_publisher(index, me._replace(epoch=0))
        if world.repair and not self._goes_on(world, world.repair):
            world = world._replace(repair=None)  # it can only stop now
        if world.frozen and not self._goes_on(world, world.frozen):
            world = world._replace(frozen=None)
        if self._commits_once and not self.surroundings.marker_loss_count:
            transaction, committing = (
                world.transaction,
                any(me.step in ("produced", "flushed") for me in world.publishers),
            )
            committing = committing or any(
                repair is not None and repair.sending for repair in (world.repair, world.frozen)
            )
            if transaction is None and world.late_commit:
                world = world._replace(late_commit=False)
            elif transaction and transaction.rows and not (world.late_commit or committing):
                # No process can commit it any more.
                world = world._replace(transaction=Transaction((), transaction.progress and ZERO))
        if len(world.progress) > 1 and not (self.surroundings.stable_offset_lags or self.surroundings.tail_loss_count):
            world = world._replace(progress=world.progress[-1:])
        if self.names_exchangeable and world.publishers[1] < world.publishers[0]:
            world = world._replace(publishers=world.publishers[::-1])
        return world

    @property
    def _commits_once(self) -> bool:
        return self.protocol.one_transaction_per_producer and self.protocol.takeover_after_failed_commit

    def _session_ended(self, world: World, me: Publisher) -> bool:
        return self.protocol.session_of_the_lock and me.era != world.era

    def _goes_on(self, world: World, repair: Repair) -> bool:
        return can_go_on(world, repair, progress_checked=self.protocol.progress_checked_before_sending_again)

    # --- moves of Postgres and Kafka

    def _postgres(self, world: World) -> Moves:
        rows, era = world.rows, world.era
        unmarked = [ticket for ticket in self.surroundings.tickets if all(ticket != row.ticket for row in rows)]
        # Tickets differ in name only, so before a restore their order makes no difference.
        for ticket in unmarked if era else unmarked[:1]:
            row = Row(len(rows) + 1, ticket, era)
            yield f"Postgres: marks {row}", world._replace(rows=(*rows, row))
        if era < self.surroundings.restore_count:
            for kept in range(len(rows) + 1):
                for published_seq in range(min(kept, world.published_seq) + 1):
                    if (kept, published_seq) != (len(rows), world.published_seq):
                        label = f"Postgres: is restored to rows {listed(rows[:kept])}, published_seq {published_seq}"
                        yield label, world._replace(rows=rows[:kept], published_seq=published_seq, era=era + 1)

    def _kafka(self, world: World) -> Moves:
        bounds, transaction, newer = (
            self.surroundings,
            world.transaction,
            world.epoch < self.surroundings.takeover_count,
        )
        if world.late_commit:
            label = f"commits {listed(transaction.rows)}" if transaction else "changes nothing"
            yield f"Kafka: the late request to commit arrives, {label}", world.committed()._replace(late_commit=False)
        if transaction and newer:
            yield "Kafka: aborts the open transaction after its timeout", world.fenced()
        if world.harm_count < bounds.recreation_count:
            emptied = transaction and transaction._replace(progress=None)
            label = "Kafka: the progress topic is deleted and created anew, empty"
            yield label, world._replace(progress=(), transaction=emptied, harm_count=world.harm_count + 1)
        if world.deletion_count < bounds.event_topic_recreation_count:
            emptied = transaction and transaction._replace(rows=())
            label, dropped = "Kafka: the event topic is deleted and created anew, empty", len(world.visible)
            yield (
                label,
                world._replace(dropped_count=dropped, transaction=emptied, deletion_count=world.deletion_count + 1),
            )
        if not world.progress and newer and (bounds.record_zero_rewritten == "always" or not world.visible):
            yield "migrate: fences, writes the record with sequence 0", world.fenced()._replace(progress=(ZERO,))
        if world.expired_seq < min(bounds.expiry_count, len(world.visible)):
            yield (
                f"Kafka: the event of row {world.expired_seq + 1} expires",
                world._replace(expired_seq=world.expired_seq + 1),
            )
        if world.progress and world.harm_count < bounds.tail_loss_count:
            label = f"Kafka: the progress topic loses its newest record, {world.progress[-1]}"
            yield label, world._replace(progress=world.progress[:-1], harm_count=world.harm_count + 1)

    def recovery(self, world: World) -> Moves:
        """Yield the next moves of a recovery, the one without a fault first."""
        yield from self._recovery(world)
        # Keeps the search small: only a recovery with more than one fence is paused.
        if self.surroundings.recoveries_overlap and (world.frozen or (world.repair and world.repair.missing)):
            yield (
                "recover: stands still, the other one goes on",
                world._replace(repair=world.frozen, frozen=world.repair),
            )

    def _recovery(self, world: World) -> Moves:
        repair, bounds = world.repair, self.surroundings
        if repair is None:
            if bounds.recoveries and world.epoch < bounds.takeover_count:
                yield f"recover: fences (epoch {world.epoch + 1})", begun(world)
            return
        if not self._goes_on(world, repair):
            pass
        elif not repair.compared:
            if after := compared(world, repair):
                lost = f", which lacks {listed(after.repair.lost)}" if after.repair and after.repair.lost else ""
                yield f"recover: compares the topic with Postgres{lost}", after
        elif repair.target is None:
            after = repaired(world, repair)
            yield f"recover: mends Postgres (rows {listed(after.rows)}, published_seq {after.published_seq})", after
        elif repair.sending:
            label = listed(world.transaction.rows if world.transaction else ())
            yield f"recover: committed ({label})", sent(world, repair, bounds.batch_size)
            yield f"recover: commits {label}, gets no reply, gives up", world.committed()._replace(repair=None)
            yield (
                "recover: asks to commit, the request is late, gives up",
                world._replace(repair=None, late_commit=True),
            )
        elif not repair.missing:
            yield f"recover: writes the progress record {repair.target}", noted(world, repair.target)
        elif world.epoch < bounds.takeover_count:
            after = sending(world, repair, bounds.batch_size)
            rows = listed(repair.missing[: bounds.batch_size])
            yield f"recover: fences (epoch {after.epoch}), sends {rows} again", after
        yield "recover: crashes", world._replace(repair=None)

    # --- the steps of a takeover

    def _step(self, world: World, index: int, me: Publisher) -> Moves:
        steps = self.protocol.steps
        step = "advanced" if me.step == "rows_read" and not me.batch else steps[steps.index(me.step) + 1]
        match step:
            case "locked":
                other = world.publishers[1 - index]
                last_seq = 0 if self.protocol.next_seq_after_progress else len(world.rows)
                fresh = Publisher(step, era=world.era, published_seq=world.published_seq, last_seq=last_seq)
                lost = "" if other == IDLE else f" (the lock is lost by {'BA'[index]})"
                yield f"locked{lost}", world.with_publisher(index, fresh)
            case "connected" | "begun":
                yield step, world.with_publisher(index, me._replace(step=step))
            case "fenced":
                yield from self._fenced(world, index, me)
            case "produced" | "flushed" | "committed" if me.epoch != world.epoch:
                return  # fenced; the takeover ends as in a crash
            case "rows_read" | "advanced" if self._session_ended(world, me):
                return  # likewise
            case "progress_read":
                yield from self._progress_read(world, index, me)
            case "rows_read":
                yield from self._rows_read(world, index, me)
            case "produced" | "flushed":
                yield from self._delivered(world, index, me)
            case "committed":
                yield from self._commit(world, index, me)
            case "advanced":
                yield from self._advanced(world, index, me)

    def _fenced(self, world: World, index: int, me: Publisher) -> Moves:
        if world.epoch == self.surroundings.takeover_count:
            return
        after = world.fenced()
        fenced = me._replace(step="fenced", epoch=after.epoch)
        label = f"fenced (epoch {after.epoch}{', aborts an open transaction' if world.transaction else ''})"
        yield label, after.with_publisher(index, fenced)
        if world.transaction:
            for what, broken in self._markers_dropped(world, world.transaction, after):
                yield f"{label}, the broker drops the markers of {what}", broken.with_publisher(index, fenced)

    def _progress_read(self, world: World, index: int, me: Publisher) -> Moves:
        known = world.progress[-1:] or (NO_RECORD,)
        if not self.protocol.position_in_kafka:
            known = (world.rows[me.published_seq - 1] if me.published_seq else ZERO,)
        elif self.protocol.end_from_uncommitted_reader:
            if self.protocol.hanging_ended and world.hanging:
                yield from self._hanging_ended(world, index, me, world.hanging)
                return
            if any(each and each.progress for each in (world.transaction, world.hanging)):
                return  # waits for the end of that transaction, and gives up in time as in a crash
        elif self.surroundings.stable_offset_lags:
            known = (NO_RECORD, *world.progress)
        for position in known:
            yield (
                f"progress_read ({position})",
                world.with_publisher(index, me._replace(step="progress_read", position=position)),
            )

    def _markers_dropped(self, world: World, ended: Transaction, after: World) -> Moves:
        """``after`` with a part of the markers of the transaction ``ended`` missing; label by the part."""
        if world.harm_count >= self.surroundings.marker_loss_count or not ended.rows:
            return
        parts = {"all": ended}
        if ended.progress:
            parts |= {
                "the events": Transaction(ended.rows, None),
                "the progress record": Transaction((), ended.progress),
            }
        for what, hanging in parts.items():
            visible = tuple(row for row in after.visible if row not in hanging.rows)
            progress = tuple(row for row in after.progress if row != hanging.progress)
            yield (
                what,
                after._replace(hanging=hanging, visible=visible, progress=progress, harm_count=world.harm_count + 1),
            )

    def _hanging_ended(self, world: World, index: int, me: Publisher, hanging: Transaction) -> Moves:
        if me.given_up_seq:
            return  # it was aborted, and hangs: gives up as in a crash
        position = world.progress[-1].seq
        if max((row.seq for row in world.visible), default=0) > position or any(
            row.seq <= position for row in hanging.rows
        ):
            refusal = "a part of a transaction without an end is visible"
            yield f"fails closed, {refusal}", world.with_publisher(index, IDLE, refusal=refusal)
            return
        given_up = hanging.progress or hanging.rows[-1]
        again = Publisher("connected", era=me.era, published_seq=world.published_seq, given_up_seq=given_up.seq)
        yield (
            f"begins to abort what hangs ({listed(hanging.rows)})",
            world.with_publisher(index, again, transaction=Transaction((), None)),
        )

    def _rows_read(self, world: World, index: int, me: Publisher) -> Moves:
        if refusal := self._refusal(world, me):
            yield f"fails closed, {refusal}", world.with_publisher(index, IDLE, refusal=refusal)
            return
        position = max(ZERO, me.position)
        batch = world.rows[position.seq : position.seq + self.surroundings.batch_size]
        after = Publisher("rows_read", me.era, me.epoch, position=ZERO if batch else position, batch=batch)
        yield f"rows_read ({listed(batch)})", world.taken_for_published(position.seq).with_publisher(index, after)

    def _refusal(self, world: World, me: Publisher) -> str | None:
        """Return why a publisher must fail closed after its reads; None when they agree."""
        if me.position == NO_RECORD and self.protocol.empty_topic_refused:
            return "the progress topic holds no record"
        position = max(ZERO, me.position)
        if position.seq > (len(world.rows) if self.protocol.next_seq_after_progress else me.last_seq):
            return "progress is beyond last_seq"
        published_seq = me.published_seq if self.protocol.published_seq_before_progress else world.published_seq
        if published_seq <= me.given_up_seq:
            published_seq = min(published_seq, position.seq)
        if position.seq < published_seq and self.protocol.published_seq_checked:
            return "progress is behind published_seq"
        if position.seq and self._digest(world.rows[position.seq - 1]) != self._digest(position):
            return "the row at the position is not the one that was published"
        return None

    def _digest(self, row: Row) -> object:
        return {"row": row, "ticket": row.ticket, "nothing": None}[self.protocol.digest_of]

    def _delivered(self, world: World, index: int, me: Publisher) -> Moves:
        """Yield the moves that send: events before ``produced``, the progress record before ``flushed``."""
        if me.step == "begun":
            already = world.transaction.rows if world.transaction else ()
            arriving = {"produced": (me.batch, me.batch)}
            if not self.protocol.failed_delivery_ends_takeover:
                label = f"produced (without {me.batch[-1]}, which did not fit into the queue)"
                arriving[label] = (me.batch[:-1], me.batch)
            for count in range(1, len(me.batch)):
                rows = me.batch[:count]
                label = f"produced ({listed(rows)}, the time for delivering is used)"
                arriving[label] = (rows, rows if self.protocol.progress_of_delivered else me.batch)
            for label, (rows, batch) in arriving.items():
                after = me._replace(step="produced", batch=batch)
                yield label, world.with_publisher(index, after, transaction=Transaction((*already, *rows), None))
        elif world.transaction:  # outside a transaction the broker refuses the record
            progress = me.batch[-1] if self.protocol.position_in_kafka else None
            transaction = world.transaction._replace(progress=progress)
            yield "flushed", world.with_publisher(index, me._replace(step="flushed"), transaction=transaction)

    def _commit(self, world: World, index: int, me: Publisher) -> Moves:
        """Yield every outcome of the request to commit and of its reply; librdkafka repeats the request by itself."""
        label = listed(world.transaction.rows if world.transaction else ())
        committed = world.committed().with_publisher(index, me._replace(step="committed", batch=me.batch[-1:]))
        yield f"committed ({label})", committed
        if world.transaction:
            for what, broken in self._markers_dropped(world, world.transaction, committed):
                yield f"committed ({label}), the broker drops the markers of {what}", broken
        yield f"committed ({label}, at the second request; the first is late)", committed._replace(late_commit=True)
        if self.protocol.takeover_after_failed_commit:
            then, left = "gives up", IDLE
        else:
            then, left = "takes it for not committed", me._replace(step="rows_read")
        yield f"commits {label}, gets no reply, {then}", world.committed().with_publisher(index, left)
        yield f"asks to commit, the request is late, {then}", world.with_publisher(index, left, late_commit=True)

    def _advanced(self, world: World, index: int, me: Publisher) -> Moves:
        reached = me.batch[-1] if me.batch else me.position
        if reached.seq > len(world.rows):  # the table's constraint: published_seq <= last_seq
            return
        published_seq = max(world.published_seq, reached.seq)
        after = world._replace(published_seq=published_seq).taken_for_published(published_seq)
        goes_on = me.batch and not self.protocol.one_transaction_per_producer
        left = Publisher("progress_read", me.era, me.epoch, position=reached) if goes_on else IDLE
        yield f"advanced (published_seq {published_seq})", after.with_publisher(index, left)
