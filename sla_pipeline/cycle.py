"""One cycle's values: its input, its clock, its claim, and its totals, which travel through the four steps.

Pure: no driver, no server, no Dagster.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Protocol, Self
from uuid import UUID

from sla_pipeline.breach import BreachKind
from sla_pipeline.errors import CycleFailed, InputError, SlaPipelineError
from sla_pipeline.quoting import quoted
from sla_pipeline.set_aside import SetAside

__all__ = [
    "BATCH_SIZE",
    "ERRORS_KEPT",
    "LISTED_COUNT",
    "MAX_BATCHES_PER_CYCLE",
    "Claim",
    "Clock",
    "CycleInput",
    "CycleTotals",
    "ErrorList",
    "IntegerRange",
    "OnStep",
    "SimulatedClock",
    "SystemClock",
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
"""Errors of a cycle whose text is kept: 10,000 bad rows, the ceiling, put 2 MB into a journal row and an exception."""

LISTED_COUNT = 20
"""Single tickets, or values, that a message for people lists at most."""

OnStep = Callable[[str], None]
"""Called with the name of a step at its end. A test harness passes one that kills, pauses or waits there."""


def no_step(name: str) -> None:
    """Do nothing: the default ``OnStep``."""


class Clock(Protocol):
    """Source of ``now_utc`` (SPEC 4.1)."""

    is_wall_clock: bool
    """True when the clock shows today's time, so that a difference to the database's clock is a fault."""

    def now_utc(self) -> datetime:
        """Return the current time, aware, in UTC."""
        ...


class SystemClock:
    """The worker's system clock."""

    is_wall_clock = True

    def now_utc(self) -> datetime:
        """Return the system's time, in UTC."""
        return datetime.now(UTC)


@dataclass(slots=True)
class SimulatedClock:
    """A clock that moves only when set: a replay runs on it."""

    moment: datetime
    is_wall_clock: bool = False

    def now_utc(self) -> datetime:
        """Return the moment that was set last."""
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
    """Input of one cycle (SPEC 4, 5.2). Raises ``InputError`` naming field, value and range."""

    batch_size: int = BATCH_SIZE.default
    max_batches_per_cycle: int = MAX_BATCHES_PER_CYCLE.default
    tenant_id: str | None = None

    def __post_init__(self) -> None:
        _whole_number("batch_size", self.batch_size, BATCH_SIZE)
        _whole_number("max_batches_per_cycle", self.max_batches_per_cycle, MAX_BATCHES_PER_CYCLE)
        object.__setattr__(self, "tenant_id", _tenant(self.tenant_id))

    @property
    def ceiling(self) -> int:
        """Most rows that one cycle marks."""
        return self.batch_size * self.max_batches_per_cycle


@dataclass(slots=True)
class ErrorList:
    """Errors of a cycle: all are counted, the text of the first ``ERRORS_KEPT`` is kept, step faults before tickets."""

    count: int = 0
    """Number of all errors, kept or not."""
    faults: list[SlaPipelineError] = field(default_factory=list)
    """Faults of steps, in their order: callers and alerts go by a fault's class, people by its text."""
    _step_faults: list[str] = field(default_factory=list)
    _ticket_errors: list[str] = field(default_factory=list)

    def add(self, error: str, fault: SlaPipelineError | None = None) -> None:
        """Add a fault of a step, with its object where there is one."""
        self._add(self._step_faults, error)
        if fault is not None and len(self.faults) < ERRORS_KEPT:
            self.faults.append(fault)

    def add_first(self, error: str) -> None:
        """Add the fault that ended the cycle, before all others."""
        self.count += 1
        self._step_faults = [error, *self._step_faults][:ERRORS_KEPT]

    def add_of_ticket(self, error: str) -> None:
        """Add the error of one ticket; thousands of these do not displace a fault of a step."""
        self._add(self._ticket_errors, error)

    def kept(self) -> list[str]:
        """Return the errors whose text is kept."""
        return (self._step_faults + self._ticket_errors)[:ERRORS_KEPT]

    def listed(self, limit: int = ERRORS_KEPT) -> list[str]:
        """Return the first ``limit`` errors and, where there are more, one line with their number."""
        shown = self.kept()[:limit]
        if self.count > len(shown):
            shown.append(
                f"and {self.count - len(shown)} more errors; the log has a line for each ticket that was set aside"
            )
        return shown

    def _add(self, kept: list[str], error: str) -> None:
        self.count += 1
        if len(kept) < ERRORS_KEPT:
            kept.append(error)


@dataclass
class CycleTotals:
    """Numbers and errors of one cycle (SPEC 5.7, 9), the one place of each; every step adds to them.

    Counts are of tickets unless the comment has another unit. Each number, that is each flag and each name ending in
    ``_count`` or ``_ms`` (milliseconds), is a column of the journal (``as_row``), a metadata entry of the
    materialization (``as_metadata``) and a field of the command's JSON: a new number is one line here, and a column.
    """

    claimed_count: int = 0
    first_response_count: int = 0
    """Marked for the first response."""
    resolution_count: int = 0
    """Marked for the resolution."""
    batch_count: int = 0
    """Batches tried."""
    lock_skip_count: int = 0
    """Held by other transactions, left to a later cycle."""
    flags_restored_count: int = 0
    """Tickets whose flag had been reset after their event was recorded: marked again, without a second event."""
    published_count: int = 0
    """Events committed to the topic, those of earlier cycles included."""
    transaction_count: int = 0
    """Kafka transactions committed."""
    backlog_count: int | None = None
    """Overdue and not marked at the end; None when it could not be counted."""
    has_more: bool = False
    """The claim reached the cycle's ceiling."""
    publishing_stopped: bool = False
    """Postgres and Kafka contradict each other (``FailClosed``): nothing is published until a person decides."""
    detected_count: int = 0
    """Breach records added to the durable counters, those of cycles that were killed included."""
    late_count: int = 0
    """Those of ``detected_count`` that were marked later than the limit of SPEC 3.5 after their deadline."""
    claim_ms: float | None = None
    mark_ms: float | None = None
    publish_ms: float | None = None
    duration_ms: float | None = None
    run_id: str = ""
    cycle_id: int | None = None
    """Id of the journal row; None when the journal could not be written."""
    now_utc: datetime | None = None
    """The cycle's ``now_utc`` (SPEC 4.1)."""
    unknown_priorities: Counter[str] = field(default_factory=Counter)
    """Priorities that are not in our list, and the number of events sent with each."""
    set_aside: SetAside | None = None
    """Overdue tickets that cannot be marked, those of earlier cycles included; None when they cannot be read."""
    error_list: ErrorList = field(default_factory=ErrorList)
    fault: SlaPipelineError | None = None
    """The fault that ended the claim or the marking early."""

    @property
    def processed_count(self) -> int:
        """Tickets marked."""
        return self.first_response_count + self.resolution_count

    @property
    def unknown_priority_count(self) -> int:
        """Events sent with a priority that is not in our list."""
        return self.unknown_priorities.total()

    @property
    def set_aside_count(self) -> int | None:
        """Tickets set aside at the end; None when they cannot be read."""
        return None if self.set_aside is None else self.set_aside.count

    @property
    def error_count(self) -> int:
        """All errors, those whose text is not kept included."""
        return self.error_list.count

    @property
    def errors(self) -> list[str]:
        """Texts of the first ``ERRORS_KEPT`` errors, step faults before tickets."""
        return self.error_list.kept()

    def add_marked(self, by_kind: Mapping[BreachKind, int]) -> None:
        """Add the tickets that a committed batch has marked."""
        self.first_response_count += by_kind[BreachKind.FIRST_RESPONSE]
        self.resolution_count += by_kind[BreachKind.RESOLUTION]

    def frequent_unknown_priorities(self) -> list[str]:
        """Return the most frequent of ``unknown_priorities``, at most ``LISTED_COUNT``."""
        return [priority for priority, _ in self.unknown_priorities.most_common(LISTED_COUNT)]

    def as_row(self) -> dict[str, int | float | None]:
        """Return the numbers by their column of ``support.ticket_sla_cycles``."""
        return {name: getattr(self, name) for name in _NUMBERS}

    @classmethod
    def from_row(cls, row: Mapping[str, object]) -> Self:
        """Return the totals of a journal row, as far as it has columns for them: errors are a number, without texts."""
        numbers = {name: row[name] for name in _NUMBERS if name in cls.__dataclass_fields__}
        return cls(**numbers, error_list=ErrorList(count=row["error_count"]))  # type: ignore[arg-type]

    def as_metadata(self) -> dict[str, int | float]:
        """Return the numbers that are known, for the materialization: the UI plots them."""
        return {name: number for name, number in self.as_row().items() if number is not None}

    def as_dict(self) -> dict[str, object]:
        """Return everything, for the command's JSON."""
        return {
            "run_id": self.run_id,
            "cycle_id": self.cycle_id,
            "now_utc": self.now_utc,
            **self.as_row(),
            "unknown_priorities": self.frequent_unknown_priorities(),
            "set_aside": asdict(self.set_aside) if self.set_aside else None,
            "errors": self.errors,
        }

    def as_line(self) -> str:
        """Return the main numbers in one line for people."""
        return (
            f"{self.processed_count} marked ({self.first_response_count} {BreachKind.FIRST_RESPONSE}, "
            f"{self.resolution_count} {BreachKind.RESOLUTION}) in {self.batch_count} batches, {self.published_count} "
            f"published, backlog {self.backlog_count}, {self.lock_skip_count} held by others, {self.error_count} "
            f"errors, {(self.duration_ms or 0) / 1000:.2f} s"
        )

    def raise_if_failed(self) -> None:
        """Raise the errors as ``CycleFailed``, or as the class of ``fault``, which is retryable or permanent."""
        if self.error_count:
            error_class = type(self.fault) if self.fault else CycleFailed
            raise error_class("; ".join(self.error_list.listed()))


_FLAGS = ("has_more", "publishing_stopped")
_NUMBERS = tuple(name for name in vars(CycleTotals) if name in _FLAGS or name.endswith(("_count", "_ms")))


@dataclass(slots=True)
class Claim:
    """Tickets that a cycle found to mark, and the totals that its steps add to.

    ``batches`` holds ticket ids in the order of SPEC 5.3, at most ``batch_size`` each; ``start_seconds`` is the
    monotonic clock at the cycle's start.
    """

    run_id: str
    now_utc: datetime
    cycle_input: CycleInput
    start_seconds: float
    totals: CycleTotals = field(default_factory=CycleTotals)
    batches: tuple[tuple[str, ...], ...] = ()
    sends_heartbeat: bool = False
    """The cycle's end is reported to the heartbeat's service: it covers all tenants, at today's time."""
