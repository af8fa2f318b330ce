"""What an audit can find, and the report that it makes: checks, examples, counts.

What belongs here: the list of checks with their words and their weight, and values. What does not: finding anything. An
example names a ticket's id and number, a sequence and a place on the topic: never more of a ticket, and never text that
came from the topic (SPEC 4.4).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import Enum, StrEnum

__all__ = ["EXAMPLE_LIMIT", "AuditReport", "Check", "Example", "Finding", "Positions", "Severity", "Tally"]

EXAMPLE_LIMIT = 5
"""The first few of a kind: enough to begin an inquiry with, and a report stays a page."""


class Severity(StrEnum):
    """How much a finding weighs.

    Only a fault makes an audit fail: it is proven, whatever the job or an operator is doing meanwhile.
    """

    FAULT = "fault"
    WARNING = "warning"
    INFORMATION = "information"


class Check(Enum):
    """One thing looked at: its weight, and what is wrong, in words, when its count is above zero."""

    RECORD_GAP = Severity.FAULT, "sequence numbers handed out without a breach record"
    RECORD_BEYOND_SEQUENCE = Severity.FAULT, "breach records beyond the last sequence handed out"
    RECORD_TICKET_TWICE = Severity.FAULT, "tickets with more than one breach record"
    RECORD_MALFORMED = Severity.FAULT, "breach records whose payload is not a valid event of what their columns say"
    RECORD_NOT_DUE = Severity.FAULT, "breach records whose deadline had not passed at BreachedAt"
    FALSE_BREACH = Severity.FAULT, "marks that the ticket, unchanged since, proves wrong"
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
    PROGRESS_UNREADABLE = Severity.FAULT, "the progress topic has no record that tells a sequence"
    PROGRESS_BEHIND_POSTGRES = Severity.FAULT, "Postgres knows more published than the progress topic"
    PROGRESS_AHEAD_OF_SEQUENCE = Severity.FAULT, "the progress topic is beyond the last sequence handed out"
    EVENT_AHEAD_OF_PROGRESS = Severity.FAULT, "the topic holds a sequence beyond the progress topic's"

    REPLY_BEFORE_BREACH = Severity.WARNING, "marks with a reply or resolution that the ticket dates before BreachedAt"

    RECORD_OF_DELETED_TICKET = Severity.INFORMATION, "breach records of tickets deleted since"
    DEADLINE_EDITED = Severity.INFORMATION, "breach records whose ticket has another deadline now"
    MARK_OLDER_THAN_RECORDS = Severity.INFORMATION, "marked tickets older than the oldest breach record kept"
    OVERDUE_SET_ASIDE = (
        Severity.INFORMATION,
        "of the overdue and unmarked, those set aside because they cannot be marked",
    )
    OVERDUE_CHANGED_LATELY = Severity.INFORMATION, "tickets past a deadline that changed within the last 2 minutes"
    RECORD_WAITING = Severity.INFORMATION, "breach records waiting to be published"
    EVENT_EXPIRED = Severity.INFORMATION, "published breach records whose event may have left the topic by retention"
    EVENT_REPUBLISHED = Severity.INFORMATION, "events that `sla-pipeline recover` published again"
    RECORD_EXPIRED = Severity.INFORMATION, "events older than the oldest breach record kept"
    POSTGRES_BEHIND_PROGRESS = Severity.INFORMATION, "published sequences that Postgres does not know of yet"

    def __init__(self, severity: Severity, title: str) -> None:
        self.severity = severity
        self.title = title

    @property
    def code(self) -> str:
        """The name by which programs know the check."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Example:
    """One case. What is not known, or does not apply, is None."""

    ticket_id: str | None = None
    number: str | None = None
    seq: int | None = None
    partition: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """How often a check failed, and the first few cases.

    A count of zero says that it was looked at and nothing was found.
    """

    check: Check
    count: int
    examples: tuple[Example, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """The finding for JSON."""
        return {
            "check": self.check.code,
            "severity": self.check.severity.value,
            "title": self.check.title,
            "count": self.count,
            "examples": [asdict(example) for example in self.examples],
        }


@dataclass(frozen=True, slots=True)
class Positions:
    """How far each side says that publishing came; sequences, None where there is nothing to tell one.

    ``published_seq`` and ``progress_seq`` are as of before the topic's end was looked up, ``last_seq`` as of the
    snapshot, ``progress_seq_after`` as of after the topic was read, so that no order of events on a live system makes
    them contradict each other.
    """

    published_seq: int
    progress_seq: int | None
    last_seq: int
    highest_event_seq: int | None
    progress_seq_after: int | None

    @property
    def claimed_published(self) -> int:
        """Everything up to this sequence was published before the topic's end was looked up, as one side or the
        other says.
        """
        return max(self.published_seq, self.progress_seq or 0)


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit at ``now_utc`` looked at and found; ``findings`` holds every check, in the order of ``Check``."""

    now_utc: datetime
    positions: Positions
    marked_count: int
    """Marked tickets."""
    record_count: int
    event_count: int
    proven_count: int
    """Marks that could be judged by the very row that they were made on, because nobody has changed the ticket
    since.
    """
    findings: tuple[Finding, ...]

    @property
    def clean(self) -> bool:
        """No fault was found. Warnings and information do not count."""
        return not any(finding.count for finding in self.findings if finding.check.severity is Severity.FAULT)

    def finding(self, check: Check) -> Finding:
        """The finding of one check."""
        return next(finding for finding in self.findings if finding.check is check)

    def as_dict(self) -> dict[str, object]:
        """The report for JSON: plain values, times in ISO 8601."""
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
    """Counts what is found while it is found, and keeps the first few cases of each check."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(Check, 0)
        self._examples: dict[Check, list[Example]] = {check: [] for check in Check}

    def add(self, check: Check, example: Example, count: int = 1) -> None:
        """``count`` further cases, of which ``example`` is the first."""
        self._counts[check] += count
        examples = self._examples[check]
        if len(examples) < EXAMPLE_LIMIT:
            examples.append(example)

    def add_all(self, check: Check, examples: list[Example], count: int) -> None:
        """``count`` further cases, of which ``examples`` are the first."""
        self._counts[check] += count
        self._examples[check] = (self._examples[check] + examples)[:EXAMPLE_LIMIT]

    def unnumbered_tickets(self) -> list[str]:
        """The ids of the tickets that are named without their number."""
        return sorted(
            {
                example.ticket_id
                for examples in self._examples.values()
                for example in examples
                if example.ticket_id is not None and example.number is None
            }
        )

    def findings(self, numbers: Mapping[str, str]) -> tuple[Finding, ...]:
        """One finding a check. ``numbers`` fills in the numbers of tickets by their id."""
        return tuple(
            Finding(check, count, tuple(self._numbered(example, numbers) for example in self._examples[check]))
            for check, count in self._counts.items()
        )

    @staticmethod
    def _numbered(example: Example, numbers: Mapping[str, str]) -> Example:
        if example.number is not None or example.ticket_id is None:
            return example
        return replace(example, number=numbers.get(example.ticket_id))
