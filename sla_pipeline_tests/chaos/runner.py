"""Run of one scenario: set-up, execution of the timeline, ordered shutdown, comparison."""

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from sla_pipeline.audit.verify import verify
from sla_pipeline.demo.worker_login import worker_login
from sla_pipeline.embedded import ServiceError
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import create_topics
from sla_pipeline.postgres.migrate import upgrade
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline.postgres.tickets import count_backlog
from sla_pipeline_tests.chaos.committed_versions import CommittedVersions
from sla_pipeline_tests.chaos.disruptions import Cut, Disruption, Kill, Outage, Pause, Scenario, seeded, timeline
from sla_pipeline_tests.chaos.event_log import EventLog
from sla_pipeline_tests.chaos.initial_tickets import InitialTickets, insert_initial_tickets
from sla_pipeline_tests.chaos.operators import LockHolder, Operator, close_tickets_not_due
from sla_pipeline_tests.chaos.outages import Outages, Servers, cut_lock_holder
from sla_pipeline_tests.chaos.outcome import Outcome
from sla_pipeline_tests.chaos.reconcile import reconcile
from sla_pipeline_tests.chaos.run_state import RunState
from sla_pipeline_tests.chaos.worker import WorkerSettings
from sla_pipeline_tests.chaos.worker_supervisor import WorkerSupervisor

__all__ = ["run"]

PrintLine = Callable[[str], None]

_TICK_SECONDS = 0.05
_WARM_UP_SECONDS = 120.0
_PROGRESS_SECONDS = 10.0
# may be left after the last disruption: a paused worker's lock, an open transaction's timeout and the broker's scan for
# expired transactions
_DRAIN_SECONDS = 90.0
# bound of the wait for kills and pauses that no worker has reached yet; on a busy machine there are many
_FINISH_SECONDS = 120.0
_JOIN_SECONDS = 120.0
# small and large: some cycles need many batches and many transactions, others one
_BATCH_SIZES = (50, 200, 500)
_TRANSACTION_LIMITS = (10_000, 150, 1_000)
# changes by operators per ticket, and the bounds of their rate
_CHANGES_PER_TICKET = 0.08
_CHANGES_PER_SECOND = (25.0, 60.0)
_PROGRESS = "select published_seq, last_seq from support.ticket_sla_relay where id = 1"


def run(scenario: Scenario, servers: Servers, folder: Path, print_line: PrintLine) -> Outcome:
    """Run ``scenario`` on ``servers``, in a database and topics of its own.

    The history and the workers' logs are written to ``folder``.
    """
    name = f"chaos_{uuid.uuid4().hex[:8]}"
    owner_url = servers.postgres.database(name)
    upgrade(owner_url, with_tickets=True)
    kafka = KafkaSettings(servers.kafka.bootstrap_servers, topic=f"{name}.breached.v1".replace("_", "-"))
    create_topics(kafka)
    event_log = EventLog(folder / "history.jsonl")
    state = RunState(event_log, lambda: cut_lock_holder(owner_url, event_log))
    worker_url = worker_login(owner_url)
    supervisors = [
        _supervisor(number, scenario, worker_url, kafka, state, folder) for number in range(scenario.workers)
    ]
    this_run = _Run(scenario, servers, owner_url, state, supervisors, print_line)
    with contextlib.closing(event_log), _ended_workers(state, supervisors):
        for supervisor in supervisors:
            supervisor.start()
        this_run.warm_up()
        committed = CommittedVersions()
        tickets = insert_initial_tickets(owner_url, scenario, committed)
        print_line(
            f"seed {scenario.seed}: {len(committed)} tickets, {scenario.kills} kills in {scenario.seconds:g} s, build "
            f"{scenario.build}"
        )
        event_log.begin()
        with _operators(scenario, owner_url, tickets, committed):
            this_run.disrupt()
        change_count = committed.change_count
        close_tickets_not_due(owner_url, tickets, committed)
        cutoff = datetime.now(UTC)
        drained = this_run.drain(cutoff)
        this_run.end_workers()
        print_line("comparing tickets, breach records, events and the operators' commits")
        findings = reconcile(owner_url, kafka, committed, cutoff)
        audit = verify(PostgresSettings(owner_url), kafka, now_utc=datetime.now(UTC))
        return Outcome(scenario, findings, audit, event_log, event_log.now, drained, len(committed), change_count)


def _supervisor(
    number: int, scenario: Scenario, worker_url: str, kafka: KafkaSettings, state: RunState, folder: Path
) -> WorkerSupervisor:
    settings = WorkerSettings(
        worker_url=worker_url,
        kafka=kafka,
        build=scenario.build,
        batch_size=_BATCH_SIZES[number % len(_BATCH_SIZES)],
        transaction_limit=_TRANSACTION_LIMITS[number % len(_TRANSACTION_LIMITS)],
        log=folder / f"worker-{number}.log",
        seed=f"{scenario.seed} worker {number}",
    )
    return WorkerSupervisor(number, settings, state, seeded(scenario.seed, "supervisor", number))


@contextlib.contextmanager
def _ended_workers(state: RunState, supervisors: list[WorkerSupervisor]) -> Iterator[None]:
    """End all workers on leaving the block, also after an error."""
    try:
        yield
    finally:
        with state.changed:
            state.aborted = True
            state.changed.notify_all()
        for supervisor in supervisors:
            supervisor.abandon()
        for supervisor in supervisors:
            if supervisor.ident is not None:
                supervisor.join(_JOIN_SECONDS)


@contextlib.contextmanager
def _operators(
    scenario: Scenario, owner_url: str, tickets: InitialTickets, committed: CommittedVersions
) -> Iterator[None]:
    """Run operators and lock holders for the length of the block. Raises the error that ended one of them early."""
    low, high = _CHANGES_PER_SECOND
    per_second = min(max(_CHANGES_PER_TICKET * len(committed) / scenario.seconds, low), high) / scenario.operators
    rngs = (seeded(scenario.seed, "person", number) for number in range(scenario.operators + scenario.holders))
    operators = [
        Operator(owner_url, tickets, committed, next(rngs), number=number, of=scenario.operators, per_second=per_second)
        for number in range(scenario.operators)
    ]
    sessions = [
        *operators,
        *(LockHolder(f"holder {number}", owner_url, tickets, next(rngs)) for number in range(scenario.holders)),
    ]
    for session in sessions:
        session.start()
    try:
        yield
    finally:
        for session in sessions:
            session.stop()
        for session in sessions:
            session.join(_JOIN_SECONDS)
    for session in sessions:
        if session.error is not None:
            raise session.error


class _Run:
    """Control of a run, in the caller's thread."""

    def __init__(
        self,
        scenario: Scenario,
        servers: Servers,
        owner_url: str,
        state: RunState,
        supervisors: list[WorkerSupervisor],
        print_line: PrintLine,
    ) -> None:
        self._scenario = scenario
        self._servers = servers
        self._owner_url = owner_url
        self._state = state
        self._supervisors = supervisors
        self._print_line = print_line
        self._printed_at = 0.0

    def warm_up(self) -> None:
        """Wait until all workers run cycles. Raises ``ServiceError`` when they do not."""
        deadline = time.monotonic() + _WARM_UP_SECONDS
        while self._state.event_log.cycles["ok"] < len(self._supervisors):
            if time.monotonic() > deadline:
                raise ServiceError(f"the workers do not complete cycles: {dict(self._state.event_log.cycles)}")
            time.sleep(_TICK_SECONDS)

    def disrupt(self) -> None:
        """Execute the whole timeline; return when every kill is done and every paused worker is resumed."""
        disruptions = timeline(self._scenario)
        event_log = self._state.event_log
        outages = Outages([item for item in disruptions if isinstance(item, Outage)], self._servers, event_log)
        outages.start()
        try:
            due = [item for item in disruptions if not isinstance(item, Outage)]
            while due or event_log.timeline_seconds < self._scenario.seconds:
                while due and due[0].at <= event_log.timeline_seconds:
                    self._carry_out(due.pop(0))
                self._carry_out_overdue_kills()
                self._tick()
            self._finish_pending()
        finally:
            outages.stop()
            outages.join()
        if outages.error is not None:
            raise outages.error
        with self._state.changed:
            self._state.disruptions_over = True
            self._state.changed.notify_all()

    def _carry_out(self, item: Disruption) -> None:
        match item:
            case Kill(step=None):
                self._kill_any(item.worker)
            case Kill() | Pause():
                with self._state.changed:
                    self._state.add(item)
            case Cut():
                self._state.cut_lock_holder()

    def _carry_out_overdue_kills(self) -> None:
        with self._state.changed:
            count = self._state.take_overdue_kills()
        for number in range(count):
            self._kill_any(number % len(self._supervisors))

    def _kill_any(self, number: int) -> None:
        while not any(supervisor.kill_now() for supervisor in self._supervisors[number:] + self._supervisors[:number]):
            self._tick()

    def _tick(self) -> None:
        self._state.event_log.tick()
        self._print_progress()
        time.sleep(_TICK_SECONDS)

    def _finish_pending(self) -> None:
        """Wait until pending kills and pauses are done, then repeat kills that hit a worker that was already dead."""
        deadline = time.monotonic() + _FINISH_SECONDS
        while (
            self._state.pending or any(supervisor.is_engaged for supervisor in self._supervisors)
        ) and time.monotonic() < deadline:
            self._carry_out_overdue_kills()
            self._tick()
        while self._state.event_log.kills.total() < self._scenario.kills:
            self._kill_any(0)
            self._tick()

    def drain(self, cutoff: datetime) -> bool:
        """Wait until nothing is overdue and all records are published; return False on timeout."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        while time.monotonic() < deadline:
            with psycopg.connect(self._owner_url, autocommit=True) as connection:
                backlog = count_backlog(connection, now_utc=cutoff)
                positions = connection.execute(_PROGRESS).fetchone()
            if backlog == 0 and positions is not None and positions[0] == positions[1]:
                return True
            self._tick()
        return False

    def end_workers(self) -> None:
        """End each worker after its current cycle."""
        with self._state.changed:
            self._state.ending = True
        for supervisor in self._supervisors:
            supervisor.join(_JOIN_SECONDS)

    def _print_progress(self) -> None:
        now = self._state.event_log.now
        if now - self._printed_at < _PROGRESS_SECONDS:
            return
        self._printed_at = now
        with (
            contextlib.suppress(psycopg.OperationalError),
            psycopg.connect(self._owner_url, connect_timeout=2) as connection,
        ):
            published, recorded = connection.execute(_PROGRESS).fetchone() or (0, 0)
            backlog = count_backlog(connection, now_utc=datetime.now(UTC))
            event_log = self._state.event_log
            self._print_line(
                f"{now:5.0f} s: {recorded} marked, {published} published, backlog {backlog}; {event_log.kills.total()} "
                f"kills, {event_log.pauses.total()} pauses, {event_log.restarts.total()} restarts, "
                f"{event_log.cycles['ok']} of {event_log.cycles.total()} cycles ok"
            )
