"""Replay of the incident log, minute by minute: real cycles, PostgreSQL and Kafka on a simulated clock.

The result is read back from the topic. ``ticket_history.py`` holds the rules of the log.
"""

import csv
import io
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from sla_pipeline.audit.findings import AuditReport
from sla_pipeline.audit.verify import verify
from sla_pipeline.breach import BreachKind
from sla_pipeline.cycle import CycleInput, SimulatedClock
from sla_pipeline.demo import support_service
from sla_pipeline.demo.incident_log import Change, IncidentLog, log_timestamp, read_log
from sla_pipeline.demo.ticket import Ticket
from sla_pipeline.demo.ticket_history import after_change, ticks
from sla_pipeline.demo.worker_login import worker_login
from sla_pipeline.embedded import ServiceError, embedded_kafka, embedded_postgres
from sla_pipeline.embedded.folders import cause
from sla_pipeline.errors import InputError
from sla_pipeline.event import TicketSlaBreachedKafkaEvent
from sla_pipeline.kafka.events import read_events
from sla_pipeline.kafka.relay import Relay
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import create_topics
from sla_pipeline.monitor.runner import run_cycle
from sla_pipeline.postgres.database import Database
from sla_pipeline.postgres.migrate import upgrade
from sla_pipeline.postgres.session import PostgresSettings, translated_errors

__all__ = ["OnProgress", "ReplayResult", "ReplayedBreach", "replay", "replay_on_embedded_servers"]

OnProgress = Callable[[int, int], None]
"""Callback after each minute: number of minutes replayed, number of all minutes."""

_RECORDS_EXIST = "select exists (select from support.ticket_sla_breaches)"


@dataclass(frozen=True, slots=True, order=True)
class ReplayedBreach:
    """One event, read from the topic. Times are in UTC."""

    breached_at: datetime
    number: str
    kind: BreachKind
    due_at: datetime

    @classmethod
    def of(cls, event: TicketSlaBreachedKafkaEvent) -> "ReplayedBreach":
        """Convert an event of the topic."""
        return cls(_moment(event.breached_at), event.number, event.breach_kind, _moment(event.due_at))


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Result of a replay.

    ``breaches`` holds one entry for each event on the topic, sorted; ``tick_count`` counts cycles.
    """

    breaches: tuple[ReplayedBreach, ...]
    audit: AuditReport
    tick_count: int
    change_count: int
    ticket_count: int
    duration_seconds: float

    @property
    def by_kind(self) -> dict[BreachKind, int]:
        """Number of events of each kind."""
        counts = Counter(breach.kind for breach in self.breaches)
        return {kind: counts[kind] for kind in BreachKind}

    @property
    def agree(self) -> bool:
        """Whether the auditor finds no fault between tickets, breach records and topic."""
        return self.audit.clean

    def as_csv(self) -> str:
        """Return a line ``breached_at,number,kind,due_at`` per event, sorted, without a header; times as in the log."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        for breach in self.breaches:
            writer.writerow(
                (log_timestamp(breach.breached_at), breach.number, breach.kind.value, log_timestamp(breach.due_at))
            )
        return text.getvalue()

    def summary(self) -> str:
        """Return a summary for people."""
        kinds = ", ".join(f"{count} {kind.value}" for kind, count in self.by_kind.items())
        result = "agree" if self.agree else "DO NOT agree"
        return (
            f"{self.change_count} changes of {self.ticket_count} tickets, {self.tick_count} cycles in "
            f"{self.duration_seconds:.0f} s: {len(self.breaches)} breaches ({kinds}). Marked tickets "
            f"({self.audit.marked_count}), breach records ({self.audit.record_count}) and events "
            f"({self.audit.event_count}) {result}."
        )


def replay(
    log: IncidentLog,
    *,
    owner_url: str,
    worker_url: str,
    kafka: KafkaSettings,
    until: datetime | None = None,
    on_progress: OnProgress = lambda done, total: None,
) -> ReplayResult:
    """Replay ``log`` up to and including ``until`` (aware), by default all of it, and read the topic (read_committed).

    The database must be migrated, with ``support.tickets``, and empty; the topics must exist and be empty. The owner
    writes the changes, the worker's login runs the cycles. Raises ``InputError`` when tables or topic hold data,
    ``CycleFailed`` when a cycle failed, and the errors of ``run_cycle`` and ``verify``.
    """
    began = time.monotonic()
    owner = PostgresSettings(owner_url)
    selected = log if until is None else log.until(until)
    minutes = ticks(log, until)
    with owner.connect(purpose="replay") as connection, translated_errors(owner):
        _require_empty(connection, owner, kafka)
        with closing(Database(PostgresSettings(worker_url))) as database, Relay(kafka) as relay:
            _run_minutes(
                selected, minutes, connection=connection, database=database, relay=relay, on_progress=on_progress
            )
    events = (TicketSlaBreachedKafkaEvent.model_validate_json(received.value) for received in read_events(kafka))
    return ReplayResult(
        breaches=tuple(sorted(map(ReplayedBreach.of, events))),
        audit=verify(PostgresSettings(worker_url), kafka, now_utc=minutes[-1] if minutes else datetime.now(UTC)),
        tick_count=len(minutes),
        change_count=len(selected.changes),
        ticket_count=len({change.number for change in selected.changes}),
        duration_seconds=time.monotonic() - began,
    )


def replay_on_embedded_servers(
    log: Path, *, until: datetime | None = None, on_progress: OnProgress = lambda done, total: None
) -> ReplayResult:
    """Replay the file ``log`` on its own PostgreSQL and Kafka, in a temporary folder that is removed afterwards.

    Raises ``InputError`` for the file before a server is started, ``ServiceError`` when a server does not start, and
    the errors of ``replay``.
    """
    changes = read_log(log)
    with _temporary_servers() as (owner_url, kafka):
        return replay(
            changes,
            owner_url=owner_url,
            worker_url=worker_login(owner_url),
            kafka=kafka,
            until=until,
            on_progress=on_progress,
        )


@contextmanager
def _temporary_servers() -> Iterator[tuple[str, KafkaSettings]]:
    with ExitStack() as stack:
        try:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sla-replay-")))
            # started by root, PostgreSQL runs as nobody and must reach the folder
            folder.chmod(0o755)
            postgres = stack.enter_context(embedded_postgres(folder / "postgres", durable=False))
            broker = stack.enter_context(embedded_kafka(folder / "kafka"))
        except OSError as error:
            raise ServiceError(
                f"the replay cannot use the folder for temporary files: {cause(error, Path())}; "
                "make room there, or name another folder in TMPDIR"
            ) from error
        owner_url = postgres.database("support")
        upgrade(owner_url, with_tickets=True)
        kafka = KafkaSettings(broker.bootstrap_servers)
        create_topics(kafka)
        yield owner_url, kafka


def _require_empty(connection: psycopg.Connection, owner: PostgresSettings, kafka: KafkaSettings) -> None:
    remedy = "a replay needs a database and topics of its own, freshly migrated"
    count = support_service.count_tickets(connection)
    if count:
        raise InputError(f"support.tickets holds {count} tickets in {owner.place}; {remedy}")
    if connection.execute(_RECORDS_EXIST).fetchone() != (False,):
        raise InputError(f"support.ticket_sla_breaches holds breach records in {owner.place}; {remedy}")
    if any(True for _ in read_events(kafka)):
        raise InputError(f"topic {kafka.topic} on Kafka at {kafka.bootstrap_servers} holds events; {remedy}")


def _run_minutes(
    log: IncidentLog,
    minutes: list[datetime],
    *,
    connection: psycopg.Connection,
    database: Database,
    relay: Relay,
    on_progress: OnProgress,
) -> None:
    changes = _ChangeCursor(log.changes)
    tickets: dict[str, Ticket] = {}
    for done, now_utc in enumerate(minutes, start=1):
        applied = []
        for change in changes.up_to(now_utc):
            tickets[change.number] = after_change(tickets.get(change.number), change)
            applied.append(tickets[change.number])
        if applied:
            support_service.apply(connection, applied)
        run_id = f"replay-{log_timestamp(now_utc)}"
        run_cycle(database, relay, CycleInput(), clock=SimulatedClock(now_utc), run_id=run_id).raise_if_failed()
        on_progress(done, len(minutes))


class _ChangeCursor:
    """Cursor over the changes of a log."""

    def __init__(self, changes: tuple[Change, ...]) -> None:
        self._changes = changes
        self._next = 0

    def up_to(self, moment: datetime) -> Iterator[Change]:
        """Return the changes that took effect since the last call."""
        while self._next < len(self._changes) and self._changes[self._next].at <= moment:
            yield self._changes[self._next]
            self._next += 1


def _moment(wire: str) -> datetime:
    return datetime.fromisoformat(wire).astimezone(UTC)
