"""Diagnosis from the event topic, the progress record and Postgres together, and the repair that follows from it.

Pure: ``repair.py`` collects the facts and carries the repair out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from sla_pipeline.kafka.progress import Progress
from sla_pipeline.recovery.topic_contents import TopicContents

__all__ = ["Diagnosis", "State", "compare"]

# Bounds the runs of sequences that one line for people lists.
_LISTED_RUNS = 5


class State(Enum):
    """Diagnosis outcome."""

    AGREED = "Postgres and Kafka agree"
    PROGRESS_LOST = "the progress record is missing or wrong"
    DATABASE_REWOUND = "Postgres lacks records that are published"
    EVENTS_MISSING = "published records have no event on the topic"
    UNDECIDABLE = "it cannot be determined what was published"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Findings, and the repair that they determine.

    ``common_seq`` is the last record that Postgres and the topic share; ``position`` the sequence up to which all is
    published; ``lost_count`` records are on the topic and not in Postgres; ``reasons`` explain why nothing can be
    decided. ``missing`` are the sequences up to ``position`` that are in Postgres and, provably, not on the topic
    (``TopicContents.expired_below``): they are listed in every state, and published again in ``EVENTS_MISSING`` only.
    ``foreign`` shows the first of the ``foreign_count`` records of other programs; ``foreign_progress`` is such a
    record behind the newest progress record of this package.
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
    def plan(self) -> tuple[State, int, int, tuple[range, ...]]:
        """Fields that determine the repair."""
        return self.state, self.common_seq, self.position, self.missing

    @property
    def missing_count(self) -> int:
        """Number of published records without an event, not explained by retention.

        The auditor's ``record_without_event``.
        """
        return sum(map(len, self.missing))

    @property
    def lost_count(self) -> int:
        """Number of records to write back."""
        return self.position - self.common_seq if self.state is State.DATABASE_REWOUND else 0

    @property
    def question(self) -> str:
        """Question that a person confirms before a repair."""
        if self.state is State.EVENTS_MISSING:
            return f"Publish {self.missing_count} events again now?"
        return "Repair it now?"

    def lines(self) -> list[str]:
        """Return the outcome, the numbers and the repair, for a person."""
        progress = (
            f"sequence {self.progress.seq} (run {self.progress.run}, {self.progress.at})" if self.progress else "none"
        )
        found = [
            f"finding: {self.state.value}",
            f"on the event topic: {self.topic_count} breach events, the last with sequence {self.topic_last_seq}; "
            f"{self.foreign_count} records of other programs",
            *self.foreign,
            f"progress record in Kafka: {progress}",
            *([f"behind it: {self.foreign_progress}"] if self.foreign_progress else []),
            f"in Postgres: {self.last_seq} handed out, {self.published_seq} recorded as published",
        ]
        if self.missing:
            found.append(
                f"missing: {self.missing_count} published records have no event on the topic (sequences "
                f"{_listed(self.missing)}), and retention does not explain it: {self._proof}"
            )
            if self.state in (State.PROGRESS_LOST, State.DATABASE_REWOUND):
                found.append(
                    "note: the repair below comes first; publishing the missing ones again is a separate question"
                )
        match self.state:
            case State.AGREED:
                return [*found, "repair: not needed"]
            case State.PROGRESS_LOST if self.topic_last_seq < self.position or (self.last_seq and not self.topic_count):
                return [
                    *found,
                    "note: the events up to there are not on the topic any more, so the position rests on Postgres "
                    "alone; events that one attempt published without recording it there would be published again",
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
                    "after them",
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
            return f"all events that the topic has lost at its beginning are older than sequence {self.expired_below}"
        return "the topic begins at its first offset, so nothing was ever removed from it"


def _listed(ranges: Sequence[range]) -> str:
    shown = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in ranges[:_LISTED_RUNS]]
    return ", ".join(shown) + (f" and {len(ranges) - _LISTED_RUNS} further runs" if len(ranges) > _LISTED_RUNS else "")


def compare(
    topic: TopicContents,
    rows: Mapping[int, str],
    *,
    last_seq: int,
    published_seq: int,
    progress: Progress | None,
    elsewhere: Mapping[int, int] = MappingProxyType({}),
) -> Diagnosis:
    """Return the diagnosis.

    ``rows`` maps the sequences in Postgres to their digests: all where the topic is complete, else from its lowest
    sequence or the position on. ``elsewhere`` maps sequences that are not on the topic to the sequence of another event
    of the same ticket.
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
            f"the progress record states that {progress.seq} is published, but no event and no record exists after "
            f"{position}"
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
    """Return the runs of sequences in Postgres, up to ``up_to``, that are provably not on the topic."""
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
    """Return the last common record where no record of Postgres matches an event.

    Adds to ``reasons`` when it cannot be determined.
    """
    last = topic.last_seq
    if not topic.digests or (min(rows, default=0) > last and published_seq >= last):
        # The topic holds no breach event, or only events so old that Postgres has deleted their records.
        return last
    if topic.complete_from == 1:
        # The topic goes back to the first event, and Postgres shares none.
        return 0
    if last_seq < topic.complete_from and last_seq == published_seq:
        # All records in Postgres are recorded as published; records after published_seq could be new ones, under old
        # sequences.
        return last_seq
    reasons.append(
        f"no record in Postgres matches an event on the topic, which goes back to sequence {topic.complete_from} only"
    )
    return last
