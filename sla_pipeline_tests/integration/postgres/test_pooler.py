"""Sessions through a real PgBouncer: session mode works, every other mode is refused before it is used."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import psycopg
import pytest

from sla_pipeline.audit.verify import verify
from sla_pipeline.cycle import CycleInput, SimulatedClock
from sla_pipeline.errors import PostgresSetupError, PostgresUnavailable
from sla_pipeline.kafka.relay import Relay
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.monitor.runner import run_cycle
from sla_pipeline.postgres import answer_timer
from sla_pipeline.postgres.database import Database
from sla_pipeline.postgres.migrate import upgrade
from sla_pipeline.postgres.outbox import PostgresOutbox
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline.recovery.outbox_repair import RepairableOutbox
from sla_pipeline_tests.integration.conftest import Cycle, Events
from sla_pipeline_tests.integration.postgres.pgbouncer import PGBOUNCER, Pooler, pgbouncer
from sla_pipeline_tests.tickets import FIRST_RESPONSE_OVERDUE, NOW, breached_ids, make_ticket, make_tickets
from sla_pipeline_tests.waiting import wait_until

pytestmark = pytest.mark.skipif(
    PGBOUNCER is None, reason="no pgbouncer on this machine (Debian: apt-get install pgbouncer)"
)

Support = psycopg.Connection[Any]
_TRANSACTION_MODE = (
    "is behind a pooler in transaction or statement mode: a session does not keep its server "
    "process, settings and locks"
)
_NOT_RESET = (
    "is behind a pooler that does not reset a session at its end, so that its locks and prepared statements stay"
)


class StartPooler(Protocol):
    """Starts a pooler in front of the test's database, with ``settings`` on top of its defaults."""

    def __call__(self, **settings: object) -> Pooler: ...


@pytest.fixture
def start_pooler(owner_url: str, worker_url: str) -> Iterator[StartPooler]:
    with contextlib.ExitStack() as up:

        def start(**settings: object) -> Pooler:
            return up.enter_context(pgbouncer(owner_url, worker_url, settings=settings))

        yield start


@contextlib.contextmanager
def _other_clients(url: str, count: int) -> Iterator[None]:
    """Keeps so many other clients of the pooler busy."""
    stop = threading.Event()

    def work() -> None:
        with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
            while not stop.is_set():
                connection.execute("select count(*) from generate_series(1, 1000)")

    with ThreadPoolExecutor(count) as pool:
        clients = [pool.submit(work) for _ in range(count)]
        try:
            yield
        finally:
            stop.set()
            for client in clients:
                client.result()


def _refusal(url: str) -> str:
    with pytest.raises(PostgresSetupError) as raised:
        PostgresSettings(url).connect(purpose="test").close()
    return str(raised.value)


def test_three_workers_at_once_share_a_pooler_in_session_mode(
    support: Support, worker_url: str, start_pooler: StartPooler, kafka_settings: KafkaSettings, events: Events
) -> None:
    """Its configuration is the default: it refuses the start-up parameter ``options``."""
    tickets = make_tickets(support, 300, **FIRST_RESPONSE_OVERDUE)
    url = start_pooler().url(worker_url)

    def work(_: int) -> list[str]:
        database = Database(PostgresSettings(url))
        with contextlib.closing(database), Relay(kafka_settings) as relay:
            return [
                error
                for _ in range(2)
                for error in run_cycle(database, relay, CycleInput(batch_size=20), clock=SimulatedClock(NOW)).errors
                # one publishes, the others leave it to that one
                if "another publisher has held the relay's lock" not in error
            ]

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(work, range(3))) == [[], [], []]
    database = Database(PostgresSettings(url))
    with contextlib.closing(database), Relay(kafka_settings) as relay:
        assert run_cycle(database, relay, clock=SimulatedClock(NOW)).errors == []
    assert breached_ids(support) == set(tickets)
    assert sorted(event.ticket_id for event in events()) == sorted(tickets)


def test_the_relays_lock_is_free_when_its_session_through_a_pooler_is_closed(
    worker_url: str, start_pooler: StartPooler
) -> None:
    url = start_pooler().url(worker_url)
    with PostgresOutbox(PostgresSettings(worker_url)) as direct:
        with PostgresOutbox(PostgresSettings(url)) as pooled:
            assert pooled.try_lock()
            assert pooled.holds_lock()
            assert not direct.try_lock()
        wait_until(direct.try_lock, what="the pooler to reset the session", seconds=5)


@pytest.mark.parametrize(
    ("settings", "words", "remedy"),
    [
        ({"pool_mode": "transaction"}, _TRANSACTION_MODE, {"pool_mode": "session"}),
        (
            {"pool_mode": "transaction", "ignore_startup_parameters": "options"},
            _TRANSACTION_MODE,
            {"pool_mode": "session"},
        ),
        ({"pool_mode": "transaction", "server_round_robin": 1}, _TRANSACTION_MODE, {"pool_mode": "session"}),
        ({"pool_mode": "statement"}, _TRANSACTION_MODE, {"pool_mode": "session"}),
        (
            {"pool_mode": "transaction", "default_pool_size": 1, "server_reset_query_always": 1},
            "does not keep the settings of a session: row_security is 'on' in the statement after it was set to 'off'",
            {"pool_mode": "session", "default_pool_size": 3},
        ),
        ({"server_reset_query": ""}, _NOT_RESET, {"server_reset_query": "DISCARD ALL"}),
        ({"server_reset_query": "RESET ALL"}, _NOT_RESET, {"server_reset_query": "DISCARD ALL"}),
    ],
)
def test_a_pooler_that_does_not_keep_sessions_is_refused_by_name(
    settings: dict[str, object],
    words: str,
    remedy: dict[str, object],
    worker_url: str,
    start_pooler: StartPooler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sla_pipeline.postgres.pooler._RESET_SECONDS", 0.3)
    url = start_pooler(**settings).url(worker_url)
    for _ in range(2):
        message = _refusal(url)
        assert words in message
        assert "let SLA_POSTGRES_URL name the server itself" in message
    assert all(f"{name} = {value}" in message for name, value in remedy.items() if name != "default_pool_size")
    remedied = start_pooler(**settings | {"server_reset_query_always": 0} | remedy).url(worker_url)
    PostgresSettings(remedied).connect(purpose="test").close()
    PostgresSettings(worker_url).connect(purpose="test").close()


def test_statements_that_another_client_has_left_are_not_taken_over(worker_url: str, start_pooler: StartPooler) -> None:
    url = start_pooler(server_reset_query="select pg_advisory_unlock_all()").url(worker_url)
    with contextlib.closing(PostgresSettings(url).connect(purpose="test")) as connection:
        connection.execute("select 1", prepare=True)
    assert _NOT_RESET in _refusal(url)


@pytest.mark.parametrize("pool_size", [2, 20])
def test_transaction_mode_is_found_out_among_other_clients(
    pool_size: int, owner_url: str, worker_url: str, start_pooler: StartPooler
) -> None:
    pooler = start_pooler(pool_mode="transaction", default_pool_size=pool_size)
    with _other_clients(pooler.url(owner_url), 3), _other_clients(pooler.url(worker_url), 3):
        for _ in range(5):
            assert _TRANSACTION_MODE in _refusal(pooler.url(worker_url))


def test_a_refused_pooler_costs_no_ticket_and_no_lock(
    support: Support, worker_url: str, start_pooler: StartPooler, relay: Relay, cycle: Cycle, events: Events
) -> None:
    """Row-level security hides half of the tickets from a session without our settings."""
    seen, hidden = (
        make_ticket(support, **FIRST_RESPONSE_OVERDUE),
        make_ticket(support, **FIRST_RESPONSE_OVERDUE, priority="High"),
    )
    support.execute("create policy half on support.tickets using (priority = 'Normal')")
    support.execute("alter table support.tickets enable row level security")
    url = start_pooler(pool_mode="transaction", ignore_startup_parameters="options").url(worker_url)
    with (
        contextlib.closing(Database(PostgresSettings(url))) as pooled,
        pytest.raises(PostgresSetupError, match=_TRANSACTION_MODE),
    ):
        run_cycle(pooled, relay, clock=SimulatedClock(NOW))
    assert breached_ids(support) == set()
    support.execute("alter table support.tickets disable row level security")
    assert cycle().errors == []
    assert {event.ticket_id for event in events()} == {seen, hidden}


def test_a_row_level_policy_is_refused_through_a_pooler_too(
    support: Support, worker_url: str, worker_login: tuple[str, str], start_pooler: StartPooler, relay: Relay
) -> None:
    make_ticket(support, **FIRST_RESPONSE_OVERDUE, priority="High")
    support.execute("create policy half on support.tickets using (priority = 'Normal')")
    support.execute("alter table support.tickets enable row level security")
    with contextlib.closing(Database(PostgresSettings(start_pooler().url(worker_url)))) as database:
        with pytest.raises(PostgresSetupError, match="`alter role LOGIN bypassrls`"):
            run_cycle(database, relay, clock=SimulatedClock(NOW)).raise_if_failed()
        support.execute(f"alter role {worker_login[0]} bypassrls")
        try:
            assert run_cycle(database, relay, clock=SimulatedClock(NOW)).processed_count == 1
        finally:
            support.execute(f"alter role {worker_login[0]} nobypassrls")


def test_a_pooler_that_lets_the_first_statement_wait_is_reported_as_one(
    worker_url: str, start_pooler: StartPooler, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, pooler = PostgresSettings, start_pooler(default_pool_size=3)
    url = pooler.url(worker_url)
    settings(url).connect(purpose="test").close()
    monkeypatch.setattr(answer_timer, "_FIRST_STATEMENTS_SECONDS", 0.5)
    words = "does not answer the first statement within 0.5 s: a pooler that is paused, or has no server process free"

    pooler.admin("pause")
    with pytest.raises(PostgresUnavailable, match=words):
        settings(url).connect(purpose="test")
    pooler.admin("resume")
    settings(url).connect(purpose="test").close()

    with contextlib.ExitStack() as up:
        for _ in range(3):
            up.enter_context(psycopg.connect(url)).execute("select 1")
        with pytest.raises(PostgresUnavailable, match=words):
            settings(url).connect(purpose="test")


_WAYS: dict[str, Callable[[str, KafkaSettings], object]] = {
    "migrate": lambda url, _: upgrade(url),
    "preview, schedule": lambda url, _: PostgresSettings(url).connect(purpose="preview").close(),
    "relay": lambda url, _: PostgresOutbox(PostgresSettings(url)).close(),
    "recover": lambda url, _: RepairableOutbox(PostgresSettings(url)).close(),
    "verify": lambda url, kafka: verify(PostgresSettings(url), kafka, now_utc=NOW),
}


@pytest.mark.parametrize("way", _WAYS)
def test_every_way_in_is_checked(
    way: str, owner_url: str, start_pooler: StartPooler, kafka_settings: KafkaSettings
) -> None:
    _WAYS[way](start_pooler().url(owner_url), kafka_settings)
    with pytest.raises(PostgresSetupError, match=_TRANSACTION_MODE):
        _WAYS[way](start_pooler(pool_mode="transaction").url(owner_url), kafka_settings)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda url: f"{url}?options=-c%20work_mem%3D9MB",
            "unsupported startup parameter: options; check user, password, database and options",
        ),
        (
            lambda url: f"{url}?sslmode=require",
            "check password, port and parameters such as sslmode in SLA_POSTGRES_URL",
        ),
        (lambda url: url.replace("://", "://x"), "check user, password, database and options in SLA_POSTGRES_URL"),
        (
            lambda url: f"{url.rpartition('/')[0]}/pgbouncer",
            "not allowed; check user, password, database and options in SLA_POSTGRES_URL",
        ),
    ],
    ids=["options", "TLS", "no such user", "not an administrator"],
)
def test_a_refusal_by_the_pooler_itself_needs_a_person(
    change: Callable[[str], str], words: str, worker_url: str, start_pooler: StartPooler
) -> None:
    assert words in _refusal(change(start_pooler().url(worker_url)))


def test_the_poolers_own_console_is_not_a_database(owner_url: str, start_pooler: StartPooler) -> None:
    message = _refusal(f"{start_pooler().url(owner_url).rpartition('/')[0]}/pgbouncer")
    assert "/bouncer'; the monitor needs PostgreSQL 14 or later" in message
