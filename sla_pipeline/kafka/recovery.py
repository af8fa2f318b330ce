"""Mends what the relay refuses to guess, from what really is on the event topic. A person asks for it; nothing here runs by itself.

Three states can be mended, alone or together:

- *The progress record is lost* (its topic was deleted, emptied, made anew, or restored from an older copy). Events go
  out in the order of their sequence, so the last sequence on the topic is the position; where the topic has forgotten
  it (retention), Postgres's copy is. Repair writes one progress record, with no event. Nothing is sent, nothing is
  changed in Postgres but its copy of the position.
- *Postgres was rewound* (restored from a backup, or failed over to a replica that lagged) and perhaps went on. The
  topic then holds events that Postgres no longer knows, after the last record that both have. Repair writes those
  records back from their events, under their old sequences, byte for byte as they were; it drops the records that
  Postgres has made since for the same tickets, because their event is out; and it puts the remaining new ones behind,
  where the next cycle publishes them. So no ticket is sent twice and none is left out. Flags on tickets are not
  touched: where the backup lost one, the next cycle sets it again, finds the record, and sends nothing. The topic is
  read a second time for the records; unless it holds exactly what the first reading found, nothing is changed.
- *Events are missing*: records that both positions count as published have no event, and retention does not explain it
  (the event topic was deleted and re-created, or a broker lost what it had acknowledged). Repair publishes exactly
  these again (``republish.py``). This comes last: the two repairs above settle first which records are published.

What cannot be told from what is left is not repaired: events of the time in question have expired, a record was deleted
from the middle, the topic itself holds a sequence or a ticket twice. Then the diagnosis says what contradicts, and a
person must decide by hand.

What does not belong here: SQL (``RepairableOutbox`` is a protocol), and asking for confirmation (the command line
does).
"""

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Protocol

from sla_pipeline.cycle import PublishedRecord
from sla_pipeline.errors import FailClosed, PublisherBusy, PublisherFenced
from sla_pipeline.event import event_key
from sla_pipeline.kafka.deadline import Deadline
from sla_pipeline.kafka.events import OnProgress
from sla_pipeline.kafka.outbox import Outbox
from sla_pipeline.kafka.progress import RECOVERY, Progress, ProgressReader, record_digest, write_progress
from sla_pipeline.kafka.published import TopicContents, read_records, scan_topic
from sla_pipeline.kafka.republish import republish
from sla_pipeline.kafka.settings import KafkaSettings

__all__ = ["Diagnosis", "RepairableOutbox", "State", "diagnose", "judge", "repair"]

# reading a topic of some million events takes a minute or two; a person is waiting, and no transaction is open
# meanwhile
_ATTEMPT_SECONDS = 1_800.0
_LOCK_SECONDS = 5.0
_LOCK_POLL_SECONDS = 0.1
# the server ends a session that is silent, and with it the lock, so it is asked something in between
_KEEPALIVE_SECONDS = 5.0
_PAGE = 10_000
# runs of sequences that one line for a person lists
_SHOWN_RANGES = 5


class RepairableOutbox(Outbox, Protocol):
    """The outbox with the one change that recovery makes to it; its login must be the owner's, for the worker may
    not delete a record.
    """

    def rebase(self, published: Iterable[PublishedRecord], *, common_seq: int, last_seq: int) -> None:
        """Puts ``published``, the records ``common_seq + 1`` to ``last_seq``, in the place of the records after ``common_seq``.

        In ONE transaction that locks the row of ``ticket_sla_relay`` first, so that no batch is marked meanwhile: of
        the records after ``common_seq``, those of a ticket among ``published`` are deleted, the others keep their order
        and get the sequences after ``last_seq``; then ``published`` is inserted. ``published_seq`` becomes
        ``last_seq``, ``last_seq`` the last of all. Raises ``FailClosed``, with nothing changed, unless ``published`` is
        exactly this run of sequences.
        """
        ...


class State(Enum):
    """What is the matter."""

    AGREED = "Postgres and Kafka agree"
    PROGRESS_LOST = "the progress record is missing or wrong"
    DATABASE_REWOUND = "Postgres lacks records that are published"
    EVENTS_MISSING = "published records have no event on the topic"
    UNDECIDABLE = "what was published cannot be told from what is left"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found, and what a repair does about it.

    ``common_seq`` is the last record that Postgres and the topic share; ``position`` the sequence up to which all is
    published; ``lost_count`` records are on the topic and not in Postgres; ``reasons`` tell why nothing can be decided.
    ``missing`` are the sequences up to there that are in Postgres and, provably, not on the topic
    (``TopicContents.expired_below``): in every state, but they are published again only in ``EVENTS_MISSING``.
    ``foreign`` shows the first of the ``foreign_count`` records that are not ours; ``foreign_progress`` the record
    behind the newest progress record that is ours.
    """

    state: State
    progress: Progress | None
    published_seq: int
    last_seq: int
    topic_last_seq: int
    topic_count: int
    foreign_count: int
    common_seq: int
    position: int
    missing: tuple[range, ...] = ()
    expired_below: int = 0
    reasons: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    foreign_progress: str = ""

    @property
    def repairs(self) -> tuple[State, int, int, tuple[range, ...]]:
        """Everything that determines a repair."""
        return self.state, self.common_seq, self.position, self.missing

    @property
    def missing_count(self) -> int:
        """Published records without an event that retention does not explain; the auditor's
        ``record_without_event``.
        """
        return sum(map(len, self.missing))

    @property
    def lost_count(self) -> int:
        """Records to be written back."""
        return self.position - self.common_seq if self.state is State.DATABASE_REWOUND else 0

    @property
    def question(self) -> str:
        """The question to be confirmed before a repair."""
        if self.state is State.EVENTS_MISSING:
            return f"Publish {self.missing_count} events again now?"
        return "Repair it now?"

    def lines(self) -> list[str]:
        """For a person: the finding, the numbers, what a repair does."""
        progress = (
            f"sequence {self.progress.seq} (run {self.progress.run}, {self.progress.at})" if self.progress else "none"
        )
        found = [
            f"finding: {self.state.value}",
            f"on the event topic: {self.topic_count} events of ours, the last with sequence {self.topic_last_seq}; "
            f"{self.foreign_count} of others",
            *self.foreign,
            f"progress record in Kafka: {progress}",
            *([f"behind it: {self.foreign_progress}"] if self.foreign_progress else []),
            f"in Postgres: {self.last_seq} handed out, {self.published_seq} noted as published",
        ]
        if self.missing:
            found.append(
                f"missing: {self.missing_count} published records have no event on the topic (sequences "
                f"{_listed(self.missing)}), and retention does not explain it: {self._proof}"
            )
            if self.state in (State.PROGRESS_LOST, State.DATABASE_REWOUND):
                found.append(
                    "note: the repair below comes first; publishing the missing ones again is a question of its own"
                )
        match self.state:
            case State.AGREED:
                return [*found, "repair: not needed"]
            case State.PROGRESS_LOST if self.topic_last_seq < self.position or (self.last_seq and not self.topic_count):
                return [
                    *found,
                    "note: the events up to there are not on the topic any more, so the position rests on Postgres "
                    "alone; what one attempt published without noting it there would be published again",
                    f"repair: write a progress record with sequence {self.position}; publishing then goes on with "
                    f"{self.position + 1}",
                ]
            case State.PROGRESS_LOST:
                return [
                    *found,
                    f"repair: write a progress record with sequence {self.position}; publishing then goes on with "
                    f"{self.position + 1}",
                ]
            case State.DATABASE_REWOUND:
                return [
                    *found,
                    f"repair: write {self.lost_count} records back from their events (sequences {self.common_seq + 1} "
                    f"to {self.position}), drop the records made since for the same tickets, put the other new ones "
                    "behind",
                ]
            case State.EVENTS_MISSING:
                return [
                    *found,
                    "note: it is proven that they are not on the topic, not that nobody has read them. If the topic "
                    "was deleted and re-created, consumers may have read some before. They get the same EventId "
                    "again, by which a consumer drops duplicates",
                    f"repair: publish these {self.missing_count} records again, as they are in Postgres, under their "
                    "old sequences, with the header republished-by; the position stays",
                ]
            case State.UNDECIDABLE:
                return [
                    *found,
                    *(f"reason: {reason}" for reason in self.reasons),
                    "repair: not possible; a person must decide by hand",
                ]

    @property
    def _proof(self) -> str:
        if self.expired_below:
            return f"what the topic has lost at its beginning is older than sequence {self.expired_below}"
        return "the topic begins at its first offset, nothing was ever removed from it"


def _listed(ranges: Sequence[range]) -> str:
    shown = [str(one[0]) if len(one) == 1 else f"{one[0]} to {one[-1]}" for one in ranges[:_SHOWN_RANGES]]
    return ", ".join(shown) + (
        f" and {len(ranges) - _SHOWN_RANGES} further runs" if len(ranges) > _SHOWN_RANGES else ""
    )


def judge(
    topic: TopicContents,
    rows: Mapping[int, str],
    *,
    last_seq: int,
    published_seq: int,
    progress: Progress | None,
    elsewhere: Mapping[int, int] = MappingProxyType({}),
) -> Diagnosis:
    """The diagnosis; pure.

    ``rows`` maps the sequences in Postgres to their digests: all where the topic is whole, else from its lowest
    sequence or the position on. ``elsewhere`` maps those that are not on the topic, but whose ticket is, to the
    sequence of that event.
    """
    last = topic.last_seq
    reasons = list(topic.faults)
    shared = topic.digests.keys() & rows.keys()
    common = max((seq for seq in shared if topic.digests[seq] == rows[seq]), default=None)
    if common is None:
        common = _unshared_common(topic, rows, last_seq=last_seq, published_seq=published_seq, reasons=reasons)
    different = [seq for seq in shared if seq < common and topic.digests[seq] != rows[seq]]
    if different:
        reasons.append(
            f"record {min(different)} differs from its event, but record {common}, which came later, does not"
        )
    if common < last:
        state, position = State.DATABASE_REWOUND, last
        if common + 1 < topic.complete_from:
            reasons.append(
                f"events from sequence {common + 1} on are missing from the topic, which is complete from "
                f"{topic.complete_from} on only"
            )
    else:
        position = max(last, published_seq)
        if progress is not None and progress.seq > position and rows.get(progress.seq) == progress.digest:
            position = progress.seq
        agreed = progress is not None and (progress.seq, progress.digest) == (position, rows.get(position, ""))
        state = State.AGREED if agreed else State.PROGRESS_LOST
    missing = _missing(topic, rows, up_to=common if state is State.DATABASE_REWOUND else position)
    if missing and state is State.AGREED:
        state = State.EVENTS_MISSING
    doubled = next((seq for run in missing for seq in run if seq in elsewhere), None) if elsewhere else None
    if doubled is not None:
        reasons.append(f"record {doubled} has no event, but its ticket has one, under sequence {elsewhere[doubled]}")
    needed = range(last + 1 if common < last else max(position, 1), last_seq + 1)
    absent = next((seq for seq in needed if seq not in rows), None)
    if absent is not None:
        reasons.append(f"record {absent} is missing from Postgres, and there is no event to write it back from")
    if progress is not None and progress.seq > position:
        reasons.append(
            f"the progress record says that {progress.seq} is published, but no event nor record shows what came "
            f"after {position}"
        )
    return Diagnosis(
        state=State.UNDECIDABLE if reasons else state,
        progress=progress,
        published_seq=published_seq,
        last_seq=last_seq,
        topic_last_seq=last,
        topic_count=len(topic.digests),
        foreign_count=topic.foreign_count,
        common_seq=common,
        position=position,
        missing=missing,
        expired_below=topic.expired_below,
        reasons=tuple(reasons),
        foreign=tuple(topic.foreign),
    )


def _missing(topic: TopicContents, rows: Mapping[int, str], *, up_to: int) -> tuple[range, ...]:
    """The runs of sequences in Postgres, up to ``up_to``, that are provably not on the topic."""
    runs: list[range] = []
    for seq in sorted(seq for seq in rows if topic.expired_below <= seq <= up_to and seq not in topic.digests):
        if runs and runs[-1].stop == seq:
            runs[-1] = range(runs[-1].start, seq + 1)
        else:
            runs.append(range(seq, seq + 1))
    return tuple(runs)


def _unshared_common(
    topic: TopicContents, rows: Mapping[int, str], *, last_seq: int, published_seq: int, reasons: list[str]
) -> int:
    """The last common record where no record of Postgres matches an event; adds to ``reasons`` when it cannot be
    told.
    """
    last = topic.last_seq
    if not topic.digests or (min(rows, default=0) > last and published_seq >= last):
        # nothing of ours is on the topic, or only what is so old that Postgres has let go of it
        return last
    if topic.complete_from == 1:
        # the topic goes back to the first event, and Postgres shares none of it
        return 0
    if last_seq < topic.complete_from and last_seq == published_seq:
        # Postgres knows all that it has to be published; its records after published_seq could be new ones, under old
        # sequences
        return last_seq
    reasons.append(
        f"no record in Postgres matches an event on the topic, which goes back to sequence {topic.complete_from} only"
    )
    return last


def diagnose(settings: KafkaSettings, outbox: Outbox, *, on_progress: OnProgress | None = None) -> Diagnosis:
    """Compares topic, progress record and Postgres; changes nothing.

    Holds the relay's lock meanwhile, so that no publisher moves what is compared. Raises ``PublisherBusy``,
    ``KafkaUnavailable``, ``KafkaSetupError``, or what the outbox raises.
    """
    with _locked(outbox):
        return _diagnosed(settings, outbox, Deadline(_ATTEMPT_SECONDS), behind_fence=False, on_progress=on_progress)[0]


def repair(
    settings: KafkaSettings,
    outbox: RepairableOutbox,
    *,
    run_id: str,
    confirmed: Diagnosis | None = None,
    on_progress: OnProgress | None = None,
) -> Diagnosis:
    """Shuts out every publisher, diagnoses again, and mends it; returns what was found. Run again after a crash, it goes on.

    ``confirmed`` is the diagnosis that a person has agreed to; where the new one would do something else, nothing is
    done. ``run_id`` is noted in the progress record. Postgres is mended first, in one transaction; the progress record
    follows. Missing events are published again in a repair of their own, when all else agrees. Raises ``FailClosed``
    with the reasons when nothing can be decided or the topic changes while it is read, and what ``diagnose`` raises.
    """
    deadline = Deadline(_ATTEMPT_SECONDS)
    found: list[Diagnosis] = []

    def mended() -> Progress | None:
        """Behind the fence."""
        diagnosis, topic = _diagnosed(settings, outbox, deadline, behind_fence=True, on_progress=on_progress)
        found.append(diagnosis)
        if diagnosis.state is State.UNDECIDABLE:
            raise FailClosed(f"nothing was changed: {'; '.join(diagnosis.reasons)}. {RECOVERY}")
        if confirmed is not None and diagnosis.repairs != confirmed.repairs:
            raise FailClosed(
                "the situation has changed since it was diagnosed, and nothing was changed; run `sla-pipeline "
                "recover` again"
            )
        if diagnosis.state is State.DATABASE_REWOUND:
            lost = {seq: digest for seq, digest in topic.digests.items() if seq > diagnosis.common_seq}
            outbox.rebase(
                _while_locked(outbox, read_records(settings, lost, on_progress=on_progress)),
                common_seq=diagnosis.common_seq,
                last_seq=diagnosis.position,
            )
        outbox.advance(diagnosis.position)
        digest = record_digest(outbox.records_from(diagnosis.position, 1)[0]) if diagnosis.position else ""
        progress = diagnosis.progress
        if (
            progress is not None
            and (progress.seq, progress.digest) == (diagnosis.position, digest)
            and not diagnosis.foreign_progress
        ):
            return None
        return Progress.standing_at(diagnosis.position, digest, run_id)

    with _locked(outbox):
        write_progress(settings, deadline, mended)
        (diagnosis,) = found
        if diagnosis.state is State.EVENTS_MISSING and diagnosis.progress is not None:
            republish(
                settings,
                outbox,
                diagnosis.missing,
                standing=diagnosis.progress,
                run_id=run_id,
                deadline=deadline,
                on_progress=on_progress,
            )
    return diagnosis


def _diagnosed(
    settings: KafkaSettings, outbox: Outbox, deadline: Deadline, *, behind_fence: bool, on_progress: OnProgress | None
) -> tuple[Diagnosis, TopicContents]:
    reader = ProgressReader(settings)
    try:
        progress, foreign_progress = reader.look(deadline, behind_fence=behind_fence)
    finally:
        reader.close()
    topic = scan_topic(settings, on_progress=on_progress)
    _require_lock(outbox)
    published_seq, last_seq = outbox.published_seq(), outbox.last_seq()
    # of a topic that has lost its oldest events, records older than the rest say nothing
    from_seq = max(topic.lowest_seq or published_seq, 1) if topic.expired_below else 1
    rows: dict[int, str] = {}
    elsewhere: dict[int, int] = {}
    while page := outbox.records_from(from_seq, _PAGE):
        for record in page:
            if record.seq > last_seq:
                continue
            rows[record.seq] = record_digest(record)
            if (
                record.seq not in topic.digests
                and (other := topic.tickets.get(event_key(record.ticket_id))) is not None
            ):
                elsewhere[record.seq] = other
        from_seq = page[-1].seq + 1
    diagnosis = judge(
        topic, rows, last_seq=last_seq, published_seq=published_seq, progress=progress, elsewhere=elsewhere
    )
    if foreign_progress is not None:
        # publishing stops there, whatever else agrees: a record of ours behind it lets it go on
        state = State.PROGRESS_LOST if diagnosis.state in (State.AGREED, State.EVENTS_MISSING) else diagnosis.state
        diagnosis = replace(diagnosis, state=state, foreign_progress=str(foreign_progress).partition(". ")[0])
    return diagnosis, topic


def _while_locked(outbox: Outbox, records: Iterator[PublishedRecord]) -> Iterator[PublishedRecord]:
    """The records; behind the last one, before anything is done with them, the lock is asked for once more."""
    yield from records
    _require_lock(outbox)


def _require_lock(outbox: Outbox) -> None:
    if not outbox.holds_lock():
        raise PublisherFenced("the relay's lock in Postgres was lost meanwhile; nothing was changed, run it again")


@contextlib.contextmanager
def _locked(outbox: Outbox) -> Iterator[None]:
    patience = Deadline(_LOCK_SECONDS)
    while not outbox.try_lock():
        if not patience.remaining_seconds():
            raise PublisherBusy(
                "a publisher holds the relay's lock in Postgres; stop the schedule, or try again in a moment"
            )
        time.sleep(_LOCK_POLL_SECONDS)
    try:
        with _kept_alive(outbox):
            yield
    finally:
        with contextlib.suppress(Exception):
            # a session that was cut has given it back
            outbox.unlock()


@contextlib.contextmanager
def _kept_alive(outbox: Outbox) -> Iterator[None]:
    """Keeps the lock's session from being ended for its silence, in a thread: a reading of the topic may wait for a
    minute.
    """
    ended = threading.Event()

    def keep() -> None:
        # a lost lock is noticed by the next _require_lock
        with contextlib.suppress(Exception):
            while not ended.wait(_KEEPALIVE_SECONDS):
                outbox.holds_lock()

    thread = threading.Thread(target=keep, name="recovery-keepalive", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
