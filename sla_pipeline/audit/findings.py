"""The checks of an audit with their titles and severities, and the values of its report.

An example holds a ticket's id and number, a sequence and a position on the topic. It never holds more of a ticket, and
never text from the topic (SPEC 4.4).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import Enum, StrEnum

__all__ = ["EXAMPLE_LIMIT", "AuditReport", "Check", "Example", "Finding", "Positions", "Severity", "Tally"]

EXAMPLE_LIMIT = 5
"""Examples per check: enough to start an investigation, few enough for a report of one page."""


class Severity(StrEnum):
    """Severity of a finding.

    Only a fault fails an audit: it is proven, whatever the job or an operator does during the audit.
    """

    FAULT = "fault"
    WARNING = "warning"
    INFORMATION = "information"


class Check(Enum):
    """A check: its severity, and the title of the cases that it counts."""

    RECORD_GAP = Severity.FAULT, "sequence numbers handed out without a breach record"
    RECORD_BEYOND_SEQUENCE = Severity.FAULT, "breach records beyond the last sequence handed out"
    RECORD_TICKET_TWICE = Severity.FAULT, "tickets with more than one breach record"
    RECORD_MALFORMED = (
        Severity.FAULT,
        "breach records whose payload is no valid event with their columns' values",
    )
    RECORD_NOT_DUE = Severity.FAULT, "breach records whose deadline had not passed at BreachedAt"
    FALSE_BREACH = Severity.FAULT, "marks that contradict the rule on the unchanged ticket"
    MARK_WITHOUT_RECORD = Severity.FAULT, "marked tickets without a breach record"
    RECORD_OF_UNMARKED = Severity.FAULT, "breach records of tickets that are not marked"
    OVERDUE_UNMARKED = Severity.FAULT, "tickets overdue and unmarked for longer than 2 minutes"
    RECORD_STUCK = Severity.FAULT, "breach records waiting to be published for longer than 2 minutes"
    RECORD_WITHOUT_EVENT = Severity.FAULT, "published breach records without an event of their sequence"
    RECORD_TICKET_WITHOUT_EVENT = Severity.FAULT, "published breach records without any event of their ticket"
    EVENT_WITHOUT_SEQUENCE = Severity.FAULT, "events without a usable outbox-seq header"
    EVENT_WITHOUT_RECORD = Severity.FAULT, "events of a sequence that has no breach record"
    EVENT_TICKET_WITHOUT_RECORD = Severity.FAULT, "events of a ticket that has no breach record"
    EVENT_PAYLOAD_DIFFERS = Severity.FAULT, "events whose payload is not their record's, byte for byte"
    EVENT_KEY_DIFFERS = Severity.FAULT, "events whose key is not their record's ticket"
    EVENT_HEADERS_DIFFER = Severity.FAULT, "events whose headers are not their record's"
    EVENT_INVALID = Severity.FAULT, "events that do not keep to the contract"
    EVENT_SEQUENCE_TWICE = Severity.FAULT, "events that repeat a sequence"
    EVENT_TICKET_TWICE = Severity.FAULT, "events that repeat a ticket"
    ORDER_IN_PARTITION = Severity.FAULT, "events with a lower sequence than the one before them in their partition"
    ORDER_OF_TICKET = Severity.FAULT, "events of one ticket in falling sequence, or in two partitions"
    PROGRESS_UNREADABLE = Severity.FAULT, "the progress topic has no record with a sequence"
    PROGRESS_BEHIND_POSTGRES = Severity.FAULT, "sequences published by Postgres' count and not by the progress topic's"
    PROGRESS_AHEAD_OF_SEQUENCE = Severity.FAULT, "sequences published by the progress topic's count, never handed out"
    EVENT_AHEAD_OF_PROGRESS = Severity.FAULT, "sequences on the topic beyond the progress topic's"

    REPLY_BEFORE_BREACH = Severity.WARNING, "marks of tickets with a reply or resolution dated before BreachedAt"

    RECORD_OF_DELETED_TICKET = Severity.INFORMATION, "breach records of tickets deleted since"
    DEADLINE_EDITED = Severity.INFORMATION, "breach records whose ticket has another deadline now"
    MARK_OLDER_THAN_RECORDS = Severity.INFORMATION, "marked tickets older than the oldest breach record kept"
    OVERDUE_SET_ASIDE = (
        Severity.INFORMATION,
        "of the overdue and unmarked, those set aside because they cannot be marked",
    )
    OVERDUE_CHANGED_LATELY = Severity.INFORMATION, "tickets past a deadline, changed within the last 2 minutes"
    RECORD_WAITING = Severity.INFORMATION, "breach records waiting to be published"
    EVENT_EXPIRED = Severity.INFORMATION, "published breach records whose event may have left the topic by retention"
    EVENT_REPUBLISHED = Severity.INFORMATION, "events that `sla-pipeline recover` published again"
    RECORD_EXPIRED = Severity.INFORMATION, "events older than the oldest breach record kept"
    POSTGRES_BEHIND_PROGRESS = Severity.INFORMATION, "published sequences that Postgres has not recorded yet"

    def __init__(self, severity: Severity, title: str) -> None:
        self.severity = severity
        self.title = title

    @property
    def code(self) -> str:
        """Identifier of the check for programs."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Example:
    """One case of a check. A field that is unknown or does not apply is None."""

    ticket_id: str | None = None
    number: str | None = None
    seq: int | None = None
    partition: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """Number of cases of a check, and the first few of them. Zero means that the check ran and found none."""

    check: Check
    count: int
    examples: tuple[Example, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """Return the finding for JSON."""
        return {
            "check": self.check.code,
            "severity": self.check.severity.value,
            "title": self.check.title,
            "count": self.count,
            "examples": [asdict(example) for example in self.examples],
        }


@dataclass(frozen=True, slots=True)
class Positions:
    """Positions of Postgres and Kafka, as sequences; None where there is none.

    ``published_seq`` and ``progress_seq`` were read before the topic's end, ``last_seq`` in the snapshot, and
    ``progress_seq_after`` after the topic. In this order no sequence of events on a live system makes them contradict
    each other.
    """

    published_seq: int
    progress_seq: int | None
    last_seq: int
    highest_event_seq: int | None
    progress_seq_after: int | None

    @property
    def claimed_published(self) -> int:
        """Sequence up to which Postgres or Kafka claims that events were published before the topic's end was read."""
        return max(self.published_seq, self.progress_seq or 0)


@dataclass(frozen=True, slots=True)
class AuditReport:
    """Report of an audit at ``now_utc``; ``findings`` holds every check, in the order of ``Check``."""

    now_utc: datetime
    positions: Positions
    marked_count: int
    """Number of marked tickets."""
    record_count: int
    event_count: int
    proven_count: int
    """Number of marks that were checked against the rule: their tickets are unchanged since."""
    findings: tuple[Finding, ...]

    @property
    def clean(self) -> bool:
        """True when no fault was found; warnings and information do not count."""
        return not any(finding.count for finding in self.findings if finding.check.severity is Severity.FAULT)

    def finding(self, check: Check) -> Finding:
        """Return the finding of a check."""
        return next(finding for finding in self.findings if finding.check is check)

    def as_dict(self) -> dict[str, object]:
        """Return the report for JSON: plain values, times in ISO 8601."""
        return {
            "clean": self.clean,
            "now_utc": self.now_utc.isoformat(),
            "positions": asdict(self.positions),
            "marked_count": self.marked_count,
            "record_count": self.record_count,
            "event_count": self.event_count,
            "proven_count": self.proven_count,
            "findings": [finding.as_dict() for finding in self.findings],
        }


class Tally:
    """Running counts of all checks, with the first few cases of each."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(Check, 0)
        self._examples: dict[Check, list[Example]] = {check: [] for check in Check}

    def add(self, check: Check, example: Example, count: int = 1) -> None:
        """Add ``count`` cases, of which ``example`` is the first."""
        self._counts[check] += count
        examples = self._examples[check]
        if len(examples) < EXAMPLE_LIMIT:
            examples.append(example)

    def add_all(self, check: Check, examples: list[Example], count: int) -> None:
        """Add ``count`` cases, of which ``examples`` are the first."""
        self._counts[check] += count
        self._examples[check] = (self._examples[check] + examples)[:EXAMPLE_LIMIT]

    def unnumbered_tickets(self) -> list[str]:
        """Return the ids of the tickets in examples without a number."""
        return sorted(
            {
                example.ticket_id
                for examples in self._examples.values()
                for example in examples
                if example.ticket_id is not None and example.number is None
            }
        )

    def findings(self, numbers: Mapping[str, str]) -> tuple[Finding, ...]:
        """Return one finding per check. ``numbers`` maps ticket ids to the numbers that examples lack."""
        return tuple(
            Finding(check, count, tuple(self._numbered(example, numbers) for example in self._examples[check]))
            for check, count in self._counts.items()
        )

    @staticmethod
    def _numbered(example: Example, numbers: Mapping[str, str]) -> Example:
        if example.number is not None or example.ticket_id is None:
            return example
        return replace(example, number=numbers.get(example.ticket_id))
