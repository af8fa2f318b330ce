"""A cycle's input, clock and results: the values that travel between its four steps.

What belongs here: validated, frozen values and the protocol of the clock. What does not: anything that does the work
(``monitor/``), or talks to a server (``postgres/``, ``kafka/``).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple, Protocol
from uuid import UUID

from sla_pipeline.breach import BreachKind
from sla_pipeline.errors import InputError, SlaPipelineError
from sla_pipeline.quoting import quoted

__all__ = [
    "BATCH_SIZE",
    "ERRORS_KEPT",
    "MAX_BATCHES_PER_CYCLE",
    "BreachRecord",
    "Claim",
    "Clock",
    "CycleInput",
    "ErrorList",
    "IntegerRange",
    "MarkTotals",
    "OnStep",
    "PublishTotals",
    "PublishedRecord",
    "SimulatedClock",
    "SystemClock",
    "listed",
    "no_step",
]


@dataclass(frozen=True, slots=True)
class IntegerRange:
    """Default and inclusive bounds of a whole-number setting."""

    default: int
    low: int
    high: int


# SPEC 3.2
BATCH_SIZE = IntegerRange(default=500, low=1, high=1000)
MAX_BATCHES_PER_CYCLE = IntegerRange(default=20, low=1, high=200)

ERRORS_KEPT = 100
"""Errors of a cycle whose text is kept. Ten thousand bad rows, the ceiling, put 2 MB into a journal row and an
exception.
"""

OnStep = Callable[[str], None]
"""Called with the name of a step at its end. The default does nothing; a test harness passes one that kills, pauses or
waits there.
"""


def no_step(name: str) -> None:
    """The default ``OnStep``."""


class Clock(Protocol):
    """Where ``now_utc`` comes from (SPEC 4.1)."""

    is_wall_clock: bool
    """True when this clock claims to tell today's time, so that a difference to the database's clock is a fault."""

    def now_utc(self) -> datetime:
        """The current time, aware, in UTC."""
        ...


class SystemClock:
    """The worker's system clock."""

    is_wall_clock = True

    def now_utc(self) -> datetime:
        """The system's time, in UTC."""
        return datetime.now(UTC)


@dataclass(slots=True)
class SimulatedClock:
    """A clock that stands until it is set: the replay of a log runs on it."""

    moment: datetime
    is_wall_clock: bool = False

    def now_utc(self) -> datetime:
        """The moment it was set to."""
        return self.moment


def _whole_number(name: str, value: object, allowed: IntegerRange) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not allowed.low <= value <= allowed.high:
        raise InputError(
            f"{name} is {quoted(value)}; it must be a whole number from {allowed.low} to {allowed.high} (default "
            f"{allowed.default})"
        )
    return value


def _tenant(value: object) -> str | None:
    if value is None:
        return None
    try:
        return str(UUID(str(value)))
    except ValueError:
        raise InputError(f"tenant_id is {quoted(value)}; it must be a UUID, or be left out for all tenants") from None


@dataclass(frozen=True, slots=True)
class CycleInput:
    """What one cycle is asked to do (SPEC 4, 5.2). Raises ``InputError`` naming field, value and range."""

    batch_size: int = BATCH_SIZE.default
    max_batches_per_cycle: int = MAX_BATCHES_PER_CYCLE.default
    tenant_id: str | None = None

    def __post_init__(self) -> None:
        _whole_number("batch_size", self.batch_size, BATCH_SIZE)
        _whole_number("max_batches_per_cycle", self.max_batches_per_cycle, MAX_BATCHES_PER_CYCLE)
        object.__setattr__(self, "tenant_id", _tenant(self.tenant_id))

    @property
    def ceiling(self) -> int:
        """The most rows that one cycle marks."""
        return self.batch_size * self.max_batches_per_cycle


@dataclass(slots=True)
class ErrorList:
    """Errors of a cycle: all are counted, the text of the first ``ERRORS_KEPT`` is kept, faults of steps before
    those of tickets.
    """

    count: int = 0
    """Of all, kept or not."""
    _faults: list[str] = field(default_factory=list)
    _of_tickets: list[str] = field(default_factory=list)

    def add(self, error: str) -> None:
        """Add a fault of a step."""
        self._add(self._faults, error)

    def add_of_ticket(self, error: str) -> None:
        """Add the error of one ticket, of which there may be thousands: they do not displace a fault of a step."""
        self._add(self._of_tickets, error)

    def add_all(self, other: "ErrorList") -> None:
        """Add what another step has counted."""
        self.count += other.count
        self._faults = (self._faults + other._faults)[:ERRORS_KEPT]
        self._of_tickets = (self._of_tickets + other._of_tickets)[:ERRORS_KEPT]

    def kept(self) -> list[str]:
        """The errors whose text is kept."""
        return (self._faults + self._of_tickets)[:ERRORS_KEPT]

    def _add(self, kept: list[str], error: str) -> None:
        self.count += 1
        if len(kept) < ERRORS_KEPT:
            kept.append(error)


def listed(errors: Sequence[str], count: int, *, limit: int = ERRORS_KEPT) -> list[str]:
    """The first ``limit`` of a cycle's errors, and, where there are more, one line that says how many of the
    ``count``.
    """
    shown = list(errors[:limit])
    if count > len(shown):
        shown.append(f"and {count - len(shown)} more errors; the log has a line for each ticket that was set aside")
    return shown


@dataclass(frozen=True, slots=True)
class Claim:
    """The tickets that a cycle has found to mark.

    ``batches`` holds their ids in the order of SPEC 5.3, at most ``batch_size`` each.
    """

    run_id: str
    now_utc: datetime
    given: CycleInput
    began: float
    """Monotonic seconds at the start."""
    cycle_id: int | None = None
    """The journal row; None when the journal could not be written."""
    batches: tuple[tuple[str, ...], ...] = ()
    claim_ms: float = 0.0
    errors: ErrorList = field(default_factory=ErrorList)
    """Faults that did not keep the cycle from going on."""
    fault: SlaPipelineError | None = None
    """The fault that left the claim empty."""

    @property
    def claimed_count(self) -> int:
        """Tickets claimed."""
        return sum(map(len, self.batches))


@dataclass(slots=True)
class MarkTotals:
    """What the marking of a cycle came to; counts of tickets unless the name says otherwise."""

    by_kind: dict[BreachKind, int] = field(default_factory=lambda: dict.fromkeys(BreachKind, 0))
    batch_count: int = 0
    lock_skips: int = 0
    remarked: int = 0
    """Tickets whose flag somebody had put back after their event was recorded: marked again, without a second event."""
    unknown_priorities: Counter[str] = field(default_factory=Counter)
    """Priorities that we do not know, and how many tickets went out with each."""
    errors: ErrorList = field(default_factory=ErrorList)
    fault: SlaPipelineError | None = None
    """The fault that ended the marking before its end."""

    @property
    def processed(self) -> int:
        """Tickets marked."""
        return sum(self.by_kind.values())


class BreachRecord(NamedTuple):
    """One row of the outbox: what is to be published of one ticket.

    ``seq`` counts from 1 without a gap, in commit order.
    """

    seq: int
    ticket_id: str
    correlation_id: str
    payload: str
    """The event's JSON, stored when the ticket was marked, sent as it is."""


@dataclass(frozen=True, slots=True)
class PublishedRecord:
    """A breach record rebuilt from its event, with the columns that the outbox keeps beside the payload."""

    record: BreachRecord
    number: str
    kind: str
    due_at: datetime
    breached_at: datetime


@dataclass(slots=True)
class PublishTotals:
    """What the publishing of a cycle came to."""

    published: int = 0
    """Events committed to the topic by this cycle, leftovers of earlier ones included."""
    transactions: int = 0
    errors: ErrorList = field(default_factory=ErrorList)
