"""One run from its first ticket to its verdict.

What belongs here: setting the scene, the timeline as it passes, ending everything in order. What does not: each
disruption (``seats.py``, ``outages.py``), the operators (``operators.py``), the comparison (``verdict.py``).
"""

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from sla_pipeline.audit.findings import AuditReport
from sla_pipeline.audit.verify import verify
from sla_pipeline.demo.worker_login import worker_login
from sla_pipeline.embedded import ServiceError
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import create_topics
from sla_pipeline.postgres.migrate import upgrade
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline.postgres.tickets import count_backlog
from sla_pipeline_tests.chaos.chronicle import Chronicle
from sla_pipeline_tests.chaos.disruptions import Cut, Disruption, Freeze, Kill, Outage, Scenario, seeded, timeline
from sla_pipeline_tests.chaos.ledger import Ledger
from sla_pipeline_tests.chaos.operators import Holder, Operator, close_what_is_not_due
from sla_pipeline_tests.chaos.outages import Outages, Servers, cut_lock_holder
from sla_pipeline_tests.chaos.seats import Seat
from sla_pipeline_tests.chaos.stage import Stage
from sla_pipeline_tests.chaos.stock import Stock, make_stock
from sla_pipeline_tests.chaos.verdict import Findings, examine
from sla_pipeline_tests.chaos.worker import Contract

__all__ = ["Outcome", "run"]

Say = Callable[[str], None]

_TICK_SECONDS = 0.05
_WARM_UP_SECONDS = 120.0
_TELL_EVERY_SECONDS = 10.0
# what may be left when the last disruption is over: a frozen worker's lock, an open transaction's time-out and the
# broker's own scan
_DRAIN_SECONDS = 90.0
# for what was ordered and not reached yet: on a busy machine much of it
_FINISH_SECONDS = 120.0
_JOIN_SECONDS = 120.0
# small and large, so that some cycles need many batches and many transactions, others one
_BATCH_SIZES = (50, 200, 500)
_TRANSACTION_LIMITS = (10_000, 150, 1_000)
# changes by operators per ticket, and the bounds of their rate
_CHANGES_PER_TICKET = 0.08
_CHANGES_PER_SECOND = (25.0, 60.0)
_PROGRESS = "select published_seq, last_seq from support.ticket_sla_relay where id = 1"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to."""

    scenario: Scenario
    findings: Findings
    audit: AuditReport
    """What the product's own auditor says of the same."""
    chronicle: Chronicle
    seconds: float
    drained: bool
    ticket_count: int
    change_count: int

    @property
    def clean(self) -> bool:
        """No fault in any book, every record published, no error that has no place here."""
        return self.drained and not self.findings.faults and self.audit.clean and not self.chronicle.unexpected


def run(scenario: Scenario, servers: Servers, folder: Path, say: Say) -> Outcome:
    """Run ``scenario`` on ``servers``, in a database and topics of its own. ``folder`` gets the history and the
    workers' logs.
    """
    name = f"chaos_{uuid.uuid4().hex[:8]}"
    owner_url = servers.postgres.database(name)
    upgrade(owner_url, with_tickets=True)
    kafka = KafkaSettings(servers.kafka.bootstrap_servers, topic=f"{name}.breached.v1".replace("_", "-"))
    create_topics(kafka)
    chronicle = Chronicle(folder / "history.jsonl")
    stage = Stage(chronicle, lambda: cut_lock_holder(owner_url, chronicle))
    worker_url = worker_login(owner_url)
    seats = [_seat(number, scenario, worker_url, kafka, stage, folder) for number in range(scenario.workers)]
    play = _Play(scenario, servers, owner_url, stage, seats, say)
    with contextlib.closing(chronicle), _all_ended(stage, seats):
        for seat in seats:
            seat.start()
        play.warm_up()
        ledger = Ledger()
        stock = make_stock(owner_url, scenario, ledger)
        say(
            f"seed {scenario.seed}: {len(ledger)} tickets, {scenario.kills} kills in {scenario.seconds:g} s, build "
            f"{scenario.build}"
        )
        chronicle.begin()
        with _operators(scenario, owner_url, stock, ledger):
            play.disrupt()
        change_count = ledger.change_count
        close_what_is_not_due(owner_url, stock, ledger)
        cutoff = datetime.now(UTC)
        drained = play.drain(cutoff)
        play.end_workers()
        say("comparing tickets, breach records, events and the operators' ledger")
        findings = examine(owner_url, kafka, ledger, cutoff)
        audit = verify(PostgresSettings(owner_url), kafka, now_utc=datetime.now(UTC))
        return Outcome(scenario, findings, audit, chronicle, chronicle.now, drained, len(ledger), change_count)


def _seat(number: int, scenario: Scenario, worker_url: str, kafka: KafkaSettings, stage: Stage, folder: Path) -> Seat:
    contract = Contract(
        worker_url=worker_url,
        kafka=kafka,
        build=scenario.build,
        batch_size=_BATCH_SIZES[number % len(_BATCH_SIZES)],
        transaction_limit=_TRANSACTION_LIMITS[number % len(_TRANSACTION_LIMITS)],
        log=folder / f"worker-{number}.log",
        seed=f"{scenario.seed} worker {number}",
    )
    return Seat(number, contract, stage, seeded(scenario.seed, "seat", number))


@contextlib.contextmanager
def _all_ended(stage: Stage, seats: list[Seat]) -> Iterator[None]:
    """Whatever happens inside, no worker is left."""
    try:
        yield
    finally:
        with stage.changed:
            stage.aborted = True
            stage.changed.notify_all()
        for seat in seats:
            seat.abandon()
        for seat in seats:
            if seat.ident is not None:
                seat.join(_JOIN_SECONDS)


@contextlib.contextmanager
def _operators(scenario: Scenario, owner_url: str, stock: Stock, ledger: Ledger) -> Iterator[None]:
    """People at work for the length of the block. Raises what ended one of them early."""
    low, high = _CHANGES_PER_SECOND
    per_second = min(max(_CHANGES_PER_TICKET * len(ledger) / scenario.seconds, low), high) / scenario.operators
    rngs = (seeded(scenario.seed, "person", number) for number in range(scenario.operators + scenario.holders))
    operators = [
        Operator(owner_url, stock, ledger, next(rngs), number=number, of=scenario.operators, per_second=per_second)
        for number in range(scenario.operators)
    ]
    people = [
        *operators,
        *(Holder(f"holder {number}", owner_url, stock, next(rngs)) for number in range(scenario.holders)),
    ]
    for person in people:
        person.start()
    try:
        yield
    finally:
        for person in people:
            person.stop()
        for person in people:
            person.join(_JOIN_SECONDS)
    for person in people:
        if person.error is not None:
            raise person.error


class _Play:
    """The run itself, in the thread of its caller."""

    def __init__(
        self, scenario: Scenario, servers: Servers, owner_url: str, stage: Stage, seats: list[Seat], say: Say
    ) -> None:
        self._scenario = scenario
        self._servers = servers
        self._owner_url = owner_url
        self._stage = stage
        self._seats = seats
        self._say = say
        self._told_at = 0.0

    def warm_up(self) -> None:
        """Wait until the workers run: the first one imports for all. Raises ``ServiceError`` when they do not."""
        deadline = time.monotonic() + _WARM_UP_SECONDS
        while self._stage.chronicle.cycles["ok"] < len(self._seats):
            if time.monotonic() > deadline:
                raise ServiceError(f"the workers run no cycles: {dict(self._stage.chronicle.cycles)}")
            time.sleep(_TICK_SECONDS)

    def disrupt(self) -> None:
        """Let the whole timeline pass, until every kill is done and every frozen worker goes again."""
        disruptions = timeline(self._scenario)
        chronicle = self._stage.chronicle
        outages = Outages([item for item in disruptions if isinstance(item, Outage)], self._servers, chronicle)
        outages.start()
        try:
            due = [item for item in disruptions if not isinstance(item, Outage)]
            while due or chronicle.played < self._scenario.seconds:
                while due and due[0].at <= chronicle.played:
                    self._carry_out(due.pop(0))
                self._kill_late_ones()
                self._tick()
            self._finish_orders()
        finally:
            outages.stop()
            outages.join()
        if outages.error is not None:
            raise outages.error
        with self._stage.changed:
            self._stage.calm = True
            self._stage.changed.notify_all()

    def _carry_out(self, item: Disruption) -> None:
        match item:
            case Kill(step=None):
                self._kill_one(item.seat)
            case Kill() | Freeze():
                with self._stage.changed:
                    self._stage.order(item)
            case Cut():
                self._stage.cut_lock_holder()

    def _kill_late_ones(self) -> None:
        with self._stage.changed:
            count = self._stage.take_late_kills()
        for number in range(count):
            self._kill_one(number % len(self._seats))

    def _kill_one(self, number: int) -> None:
        while not any(seat.kill_now() for seat in self._seats[number:] + self._seats[:number]):
            self._tick()

    def _tick(self) -> None:
        self._stage.chronicle.tick()
        self._tell()
        time.sleep(_TICK_SECONDS)

    def _finish_orders(self) -> None:
        """Wait for what was ordered and not reached yet. A kill that met a worker in the moment of its death is made up
        for.
        """
        deadline = time.monotonic() + _FINISH_SECONDS
        while (self._stage.orders or any(seat.is_engaged for seat in self._seats)) and time.monotonic() < deadline:
            self._kill_late_ones()
            self._tick()
        while self._stage.chronicle.kills.total() < self._scenario.kills:
            self._kill_one(0)
            self._tick()

    def drain(self, cutoff: datetime) -> bool:
        """Undisturbed cycles until nothing is overdue and nothing waits. False when that does not come in time."""
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
        """Each ends after its cycle."""
        with self._stage.changed:
            self._stage.ending = True
        for seat in self._seats:
            seat.join(_JOIN_SECONDS)

    def _tell(self) -> None:
        now = self._stage.chronicle.now
        if now - self._told_at < _TELL_EVERY_SECONDS:
            return
        self._told_at = now
        with (
            contextlib.suppress(psycopg.OperationalError),
            psycopg.connect(self._owner_url, connect_timeout=2) as connection,
        ):
            published, recorded = connection.execute(_PROGRESS).fetchone() or (0, 0)
            backlog = count_backlog(connection, now_utc=datetime.now(UTC))
            chronicle = self._stage.chronicle
            self._say(
                f"{now:5.0f} s: {recorded} marked, {published} published, backlog {backlog}; {chronicle.kills.total()} "
                f"kills, {chronicle.freezes.total()} freezes, {chronicle.restarts.total()} restarts, "
                f"{chronicle.cycles['ok']} of {chronicle.cycles.total()} cycles ok"
            )
