"""The publishing protocol of ``sla_pipeline/kafka/relay.py`` as a machine of states, with all that may happen to it.

What belongs here: two publishers that take the relay's steps under the relay's names, what Postgres and Kafka do, what goes wrong, and the
properties that must hold. What does not: the search (``explorer.py``), and which shortcut breaks what (``test_protocol_model.py``).

One move is one thing that another party can see: a statement in Postgres, a request that Kafka carries out. Between any two moves anything else
may happen. Rows are told apart by what they say: a ticket that is marked again after a restore is another row of the same ticket.
Where the model is unsure of reality it allows more: a publisher that lost its lock never notices, and a restore may bring back any older pair of
rows and ``published_seq``. Crashes, lost locks, lost and late replies are not counted; the takeovers bound them. A crash stands for every
exception too, since the relay does the same after one: it forgets all, closes nothing, begins again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

__all__ = ["PROPERTIES", "ZERO", "Model", "Protocol", "Publisher", "Row", "Surroundings", "Transaction", "World", "false_alarm", "refused_for"]


class Row(NamedTuple):
    """A breach record, or the progress record that names it: ``seq`` counts from 1, ``era`` is the number of restores before its marking."""

    seq: int
    ticket: str
    era: int

    def __str__(self) -> str:
        return f"{self.seq}={self.ticket}{chr(39) * self.era}" if self.seq else "0"


_FENCED_STEPS = ("rows_read", "begun", "produced", "flushed")
_SESSION_STEPS = ("locked", "connected", "fenced", "progress_read", "committed")
# what the progress topic holds when it is created
ZERO = Row(0, "", 0)


class Transaction(NamedTuple):
    """What the broker has of an open Kafka transaction."""

    rows: tuple[Row, ...]
    progress: Row | None


class Publisher(NamedTuple):
    """One process: the last step it has ended, and what it remembers."""

    step: str = "idle"
    era: int = 0
    epoch: int = 0
    published_seq: int = 0
    next_seq: int = 0
    position: Row | None = None
    batch: tuple[Row, ...] = ()


class World(NamedTuple):
    """Everything at one moment."""

    publishers: tuple[Publisher, Publisher] = (Publisher(), Publisher())
    rows: tuple[Row, ...] = ()
    published_seq: int = 0
    era: int = 0
    epoch: int = 0
    transaction: Transaction | None = None
    late_commit: bool = False
    """A request to commit is still under way. One of an older epoch is refused, so a new epoch clears this."""
    progress: tuple[Row, ...] = (ZERO,)
    visible: tuple[Row, ...] = ()
    damages: int = 0
    """How often the progress topic was harmed."""
    passed: Row | None = None
    """A row that was taken for published though it is not on the topic."""


@dataclass(frozen=True)
class Protocol:
    """The protocol as built, and for each of its rules the shortcut that leaves it out."""

    fence_before_progress: bool = True
    one_transaction_per_producer: bool = True
    takeover_after_failed_commit: bool = True
    position_in_kafka: bool = True
    end_seen_by_uncommitted_reader: bool = True
    empty_topic_refused: bool = True
    digest_of: Literal["row", "ticket", "nothing"] = "row"
    next_seq_after_progress: bool = True
    published_seq_before_progress: bool = True
    published_seq_checked: bool = True
    failed_delivery_ends_takeover: bool = True
    own_session: bool = True
    """All statements go through the session that holds the lock, so that a restore of Postgres ends them too."""

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps in their order."""
        middle = ("fenced", "progress_read") if self.fence_before_progress else ("progress_read", "fenced")
        return ("idle", "locked", "connected", *middle, "rows_read", "begun", "produced", "flushed", "committed", "advanced")


@dataclass(frozen=True)
class Surroundings:
    """The bounds of the search, and which disasters may happen."""

    tickets: str = "abc"
    batch_size: int = 2
    takeovers: int = 4
    restores: int = 1
    recreations: int = 1
    recreated_with_zero: bool = False
    """Whoever creates the progress topic anew also writes the record with sequence 0, as for a first installation."""
    tail_losses: int = 0
    """How often the progress topic may lose its newest record (a broker that loses acknowledged writes)."""
    stable_offset_lags: bool = False
    """A committed record may be hidden from read_committed clients for a while, even after init_transactions."""


Moves = Iterator[tuple[str, World]]


@dataclass(frozen=True)
class Model:
    """All moves of a world."""

    protocol: Protocol = Protocol()
    surroundings: Surroundings = Surroundings()

    def successors(self, world: World) -> Moves:
        """Every move that is possible now, with a line that tells it."""
        if refused_for(world):
            return  # what may follow once it has forgotten all also follows from the crash that was possible instead
        for index, publisher in enumerate(world.publishers):
            if publisher.step in ("locked", "rows_read") and (publisher.batch or publisher.step == "locked"):
                for told, after in self._publisher(world, index, publisher):
                    yield f"{'AB'[index]} {told}", self._settled(after)
                return
        for told, after in (*self._postgres(world), *self._kafka(world)):
            yield told, self._settled(after)
        for index, publisher in enumerate(world.publishers):
            if publisher.step != "idle":
                yield f"{'AB'[index]} crashes after {publisher.step}", _ended(world, index)
            for told, after in self._publisher(world, index, publisher):
                yield f"{'AB'[index]} {told}", self._settled(after)

    def _settled(self, world: World) -> World:
        """The same world without differences that nothing can show any more."""
        for index, publisher in enumerate(world.publishers):
            if publisher.step in _FENCED_STEPS and publisher.epoch != world.epoch and (publisher.batch or publisher.step != "rows_read"):
                world = _ended(world, index)  # it can only find itself fenced, and stop
            elif self.protocol.own_session and publisher.era != world.era and publisher.step in _SESSION_STEPS:
                world = _ended(world, index)  # it can only find its session ended, and stop
        if world.late_commit and not world.transaction and self.protocol.one_transaction_per_producer and self.protocol.takeover_after_failed_commit:
            world = world._replace(late_commit=False)
        if len(world.progress) > 1 and not (self.surroundings.stable_offset_lags or self.surroundings.tail_losses):
            world = world._replace(progress=world.progress[-1:])
        return world

    # --- what happens by itself -------------------------------------------------------------------------------------------------------

    def _postgres(self, world: World) -> Moves:
        rows, era = world.rows, world.era
        unmarked = [ticket for ticket in self.surroundings.tickets if all(ticket != row.ticket for row in rows)]
        # tickets differ in name only, so before a restore their order is no choice
        for ticket in unmarked if era else unmarked[:1]:
            row = Row(len(rows) + 1, ticket, era)
            yield f"Postgres: ticket {ticket} is marked, row {row}", world._replace(rows=(*rows, row))
        if era < self.surroundings.restores:
            for kept in range(len(rows) + 1):
                for published_seq in range(min(kept, world.published_seq) + 1):
                    if (kept, published_seq) != (len(rows), world.published_seq):
                        yield (
                            f"Postgres: restored to rows {_listed(rows[:kept])}, published_seq {published_seq}",
                            world._replace(rows=rows[:kept], published_seq=published_seq, era=era + 1),
                        )

    def _kafka(self, world: World) -> Moves:
        transaction = world.transaction
        if world.late_commit:
            told = "commits " + _listed(transaction.rows) if transaction else "changes nothing"
            yield f"Kafka: the late commit request arrives, {told}", _committed(world)._replace(late_commit=False)
        if transaction and world.epoch < self.surroundings.takeovers:
            yield (
                "Kafka: the open transaction times out, is aborted, its producer fenced",
                world._replace(transaction=None, late_commit=False, epoch=world.epoch + 1),
            )
        if world.damages < self.surroundings.recreations:
            again = (ZERO,) if self.surroundings.recreated_with_zero else ()
            yield (
                f"Kafka: the progress topic is deleted and created again, {'with record 0' if again else 'empty'}",
                world._replace(progress=again, transaction=transaction and transaction._replace(progress=None), damages=world.damages + 1),
            )
        if world.progress and world.damages < self.surroundings.tail_losses:
            yield (
                f"Kafka: the progress topic loses its newest record, {world.progress[-1]}",
                world._replace(progress=world.progress[:-1], damages=world.damages + 1),
            )

    # --- the steps of a takeover ------------------------------------------------------------------------------------------------------

    def _publisher(self, world: World, index: int, me: Publisher) -> Moves:
        steps = self.protocol.steps
        if me.step == "rows_read" and not me.batch:
            step = "advanced"
        else:
            step = steps[steps.index(me.step) + 1]
        match step:
            case "locked":
                other = world.publishers[1 - index]
                lost = "" if other.step == "idle" else f"; {'BA'[index]} has lost its lock after {other.step}"
                fresh = Publisher(step, era=world.era, published_seq=world.published_seq)
                if not self.protocol.next_seq_after_progress:
                    fresh = fresh._replace(next_seq=len(world.rows))
                yield f"locked (published_seq {world.published_seq}, next_seq {len(world.rows)}{lost})", _with(world, index, fresh)
            case "connected" | "begun":
                yield step, _with(world, index, me._replace(step=step))
            case "fenced":
                if world.epoch < self.surroundings.takeovers:
                    epoch = world.epoch + 1
                    fenced = _with(world, index, me._replace(step=step, epoch=epoch), epoch=epoch, transaction=None, late_commit=False)
                    yield f"fenced (epoch {epoch}{', an open transaction is aborted' if world.transaction else ''})", fenced
            case "progress_read":
                yield from self._progress_read(world, index, me)
            case "rows_read":
                yield from self._rows_read(world, index, me)
            case "produced":
                yield from self._produced(world, index, me)
            case "flushed":
                if world.transaction:  # without one the broker refuses the record, and the takeover ends as in a crash
                    progress = me.batch[-1] if self.protocol.position_in_kafka else None
                    after = world._replace(transaction=world.transaction._replace(progress=progress))
                    yield step, _with(after, index, me._replace(step=step))
            case "committed":
                yield from self._commit(world, index, me)
            case "advanced":
                yield from self._advanced(world, index, me)

    def _progress_read(self, world: World, index: int, me: Publisher) -> Moves:
        seen: set[Row | None]
        if not self.protocol.position_in_kafka:
            if self._session_ended(world, me):
                return
            seen = {world.rows[me.published_seq - 1] if me.published_seq else ZERO}
        elif self.protocol.end_seen_by_uncommitted_reader:
            if world.transaction and world.transaction.progress:
                return  # it waits for that transaction's end, and gives up in time as in a crash
            seen = {world.progress[-1] if world.progress else None}
        elif self.surroundings.stable_offset_lags:
            seen = {None, *world.progress}
        else:
            seen = {world.progress[-1] if world.progress else None}
        for position in seen:
            known = me._replace(step="progress_read", position=position)
            if not self.protocol.published_seq_before_progress:
                known = known._replace(published_seq=0)
            yield f"progress_read ({'no record' if position is None else position})", _with(world, index, known)

    def _rows_read(self, world: World, index: int, me: Publisher) -> Moves:
        if self._session_ended(world, me):
            return
        refusal = self._refusal(world, me)
        if refusal:
            yield f"FAILS CLOSED: {refusal}", _ended(world, index, Publisher(f"FAIL CLOSED: {refusal}"))
            return
        position = me.position or ZERO
        batch = world.rows[position.seq : position.seq + self.surroundings.batch_size]
        after = Publisher("rows_read", me.era, me.epoch, position=None if batch else position, batch=batch)
        yield f"rows_read ({_listed(batch)})", _with(_taken_for_published(world, position.seq), index, after)

    def _refusal(self, world: World, me: Publisher) -> str | None:
        """Why a publisher must not go on from what it has read; None when all agrees."""
        if me.position is None and self.protocol.empty_topic_refused:
            return "the progress topic holds no record"
        position = me.position or ZERO
        next_seq = len(world.rows) if self.protocol.next_seq_after_progress else me.next_seq
        published_seq = me.published_seq if self.protocol.published_seq_before_progress else world.published_seq
        if position.seq > next_seq:
            return "progress is beyond next_seq"
        if position.seq < published_seq and self.protocol.published_seq_checked:
            return "progress is behind published_seq"
        if position.seq and _digest(self.protocol, world.rows[position.seq - 1 : position.seq]) != _digest(self.protocol, (position,)):
            return "the row at the position is not the one that was published"
        return None

    def _produced(self, world: World, index: int, me: Publisher) -> Moves:
        already = world.transaction.rows if world.transaction else ()
        sent = [("produced", me.batch)]
        if not self.protocol.failed_delivery_ends_takeover:
            sent.append((f"produced, but {me.batch[-1]} was not delivered", me.batch[:-1]))
        for told, rows in sent:
            yield told, _with(world._replace(transaction=Transaction((*already, *rows), None)), index, me._replace(step="produced"))

    def _commit(self, world: World, index: int, me: Publisher) -> Moves:
        """Every way in which the request to commit and its reply can fare."""
        done = _committed(world)
        told = _listed(world.transaction.rows) if world.transaction else "nothing left to commit"
        yield f"committed ({told})", _with(done, index, me._replace(step="committed"))
        yield f"committed ({told}); a first request is still under way", _with(done, index, me._replace(step="committed"), late_commit=True)
        if self.protocol.takeover_after_failed_commit:
            failed = [("gives up", lambda after: _ended(after, index))]
        else:
            failed = [("takes it for not committed", lambda after: _with(after, index, me._replace(step="rows_read")))]
        for told_after, go_on in failed:
            yield f"committed ({told}), the reply is lost: {told_after}", go_on(done)
            yield f"asked to commit, the request is late: {told_after}", go_on(world._replace(late_commit=True))

    def _advanced(self, world: World, index: int, me: Publisher) -> Moves:
        if self._session_ended(world, me):
            return
        reached = me.batch[-1] if me.batch else me.position or ZERO
        # the table's constraint: published_seq <= next_seq
        if reached.seq > len(world.rows):
            return
        published_seq = max(world.published_seq, reached.seq)
        after = _taken_for_published(world._replace(published_seq=published_seq), published_seq)
        told = f"advanced (published_seq {published_seq})"
        if self.protocol.one_transaction_per_producer or not me.batch:
            yield told, _ended(after, index)
        else:
            yield told, _with(after, index, Publisher("progress_read", me.era, me.epoch, position=reached))

    def _session_ended(self, world: World, me: Publisher) -> bool:
        return self.protocol.own_session and me.era != world.era


def _with(world: World, index: int, publisher: Publisher, **changes: object) -> World:
    publishers = (publisher, world.publishers[1]) if index == 0 else (world.publishers[0], publisher)
    return world._replace(publishers=publishers, **changes)


def _ended(world: World, index: int, publisher: Publisher = Publisher()) -> World:
    return _with(world, index, publisher)


def _committed(world: World) -> World:
    if world.transaction is None:
        return world
    rows, progress = world.transaction
    return world._replace(
        transaction=None,
        visible=(*world.visible, *rows),
        progress=(*world.progress, progress) if progress else world.progress,
    )


def _taken_for_published(world: World, seq: int) -> World:
    passed = next((row for row in world.rows[:seq] if row not in world.visible), None)
    return world._replace(passed=passed) if passed else world


def _digest(protocol: Protocol, rows: tuple[Row, ...]) -> tuple[object, ...]:
    match protocol.digest_of:
        case "row":
            return rows
        case "ticket":
            return tuple(row.ticket for row in rows)
        case "nothing":
            return ()


def _listed(rows: tuple[Row, ...]) -> str:
    return " ".join(map(str, rows)) or "none"


def refused_for(world: World) -> list[str]:
    """Why publishers stand still, waiting for a person."""
    return [publisher.step for publisher in world.publishers if publisher.step.startswith("FAIL CLOSED")]


def false_alarm(world: World) -> bool:
    """Whether a publisher stopped though nothing was restored or harmed."""
    return bool(refused_for(world)) and not world.era and not world.damages


PROPERTIES = {
    "no ticket has two visible events": lambda world: len({row.ticket for row in world.visible}) == len(world.visible),
    "no row is passed over": lambda world: world.passed is None,
    "events are visible in the order of the rows": lambda world: all(
        one.seq < other.seq for one, other in zip(world.visible, world.visible[1:], strict=False)
    ),
    "no false alarm": lambda world: not false_alarm(world),
}
