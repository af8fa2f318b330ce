"""The demo's stage: PostgreSQL, Kafka, Dagster's three processes and ticket traffic, up together and down together.

What belongs here: order of start and stop, what is printed. What does not: the services themselves (``embedded/``),
what the tickets do (``traffic.py``), whether all agree in the end (``audit/``).

Dagster runs as code server, webserver and daemon on the production ``dagster.yaml``. It stops before the servers do, or
its processes would knock at a closed database for a minute.
"""

import math
import os
import shlex
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import psycopg
import sqlalchemy.exc
from dagster_graphql import DagsterGraphQLClient

from sla_pipeline.audit.findings import AuditReport
from sla_pipeline.audit.verify import verify
from sla_pipeline.demo.environment import Addresses, isolated_environment, second_shell_file
from sla_pipeline.demo.folder import check_agreement, claimed_folder, usable_or_remedy
from sla_pipeline.demo.incident_log import read_log
from sla_pipeline.demo.traffic import Traffic, load_stock
from sla_pipeline.demo.worker_login import worker_login
from sla_pipeline.embedded import Service, ServiceError, embedded_kafka, embedded_postgres, free_ports
from sla_pipeline.embedded.ports import listens
from sla_pipeline.errors import InputError
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import create_topics
from sla_pipeline.postgres import journal
from sla_pipeline.postgres.faults import first_line
from sla_pipeline.postgres.migrate import upgrade
from sla_pipeline.postgres.session import PostgresSettings

__all__ = ["run_demo"]

Say = Callable[[str], None]

_LOCATION = "sla_pipeline"
_JOB = "ticket_sla_monitor"
_SCHEDULE_TAG = "dagster/schedule_name"
# where people expect Dagster's page; another port is taken when it is in use
_USUAL_WEB_PORT = 3000
# Dagster's imports take long on a busy machine
_DAGSTER_START_SECONDS = 300.0
# a schedule's tick comes every minute; twice that and a slow start, per cycle waited for
_SECONDS_PER_CYCLE = 150.0
_POLL_SECONDS = 0.5
_ENV_FILE = "env"


def run_demo(state: Path, *, cycles: int | None, say: Say) -> AuditReport:
    """Run everything until interrupted; with ``cycles``, until so many scheduled cycles have ended, and compare then.

    ``state``, an absolute path, keeps the data from run to run; one demo at a time may use it. ``say`` prints a line.
    Settings of the caller's environment are removed from this process. Raises ``ServiceError`` when a process ends by
    itself or the data in ``state`` cannot be used, ``InputError`` when ``state`` cannot be a folder of ours, and
    outside of a checkout.
    """
    dagster_yaml = Path(__file__).resolve().parents[2] / "dagster.yaml"
    if not dagster_yaml.exists():
        raise InputError(
            f"{dagster_yaml} is missing: the demo runs from a checkout of the project, on its own dagster.yaml"
        )
    _isolate_this_process()
    with claimed_folder(state), ExitStack() as up:
        with usable_or_remedy(state):
            # of a demo that was killed: its passwords are no longer valid
            (state / _ENV_FILE).unlink(missing_ok=True)
            addresses, servers = _start_servers(state, up, say)
            watch = _Watch(addresses.owner_url)
        with ExitStack() as play:
            with usable_or_remedy(state):
                children, instance, first_run = _start_dagster(state, dagster_yaml, addresses, play, say)
                play.enter_context(second_shell_file(state / _ENV_FILE, addresses))
            say(f"to run commands against it, in another shell: . {shlex.quote(str(state / _ENV_FILE))}")
            traffic = play.enter_context(_traffic(addresses.owner_url))
            patience_seconds = cycles * _SECONDS_PER_CYCLE if cycles else math.inf
            deadline = time.monotonic() + patience_seconds
            scheduled = 0
            while cycles is None or scheduled < cycles:
                with _ended_by_itself([*servers, *children], traffic):
                    for cycle in watch.finished():
                        by_schedule = cycle.run_id != first_run and _is_scheduled(instance, cycle.run_id)
                        scheduled += by_schedule
                        say(_line(cycle))
                if time.monotonic() > deadline:
                    raise ServiceError(
                        f"only {scheduled} of {cycles} scheduled cycles ended in {patience_seconds:.0f} s; see the "
                        f"logs in {state}"
                    )
                time.sleep(_POLL_SECONDS)
        say("traffic and Dagster are stopped; comparing tickets, breach records and events")
        kafka = KafkaSettings(addresses.bootstrap_servers)
        return verify(PostgresSettings(addresses.worker_url), kafka, now_utc=datetime.now(UTC))


@contextmanager
def _ended_by_itself(services: Sequence[Service], traffic: "Future[None]") -> Iterator[None]:
    """Raise ``ServiceError`` naming what has ended, also when the block met it first as an error of a driver."""
    try:
        yield
    except (psycopg.Error, sqlalchemy.exc.SQLAlchemyError, dg.DagsterError) as error:
        for service in services:
            service.check()
        raise ServiceError(f"the demo cannot read its own cycles: {first_line(error)}") from error
    for service in services:
        service.check()
    if traffic.done():
        raise ServiceError(
            "the ticket traffic has ended by itself: "
            f"{first_line(traffic.exception() or ServiceError('it was stopped'))}"
        )


def _isolate_this_process() -> None:
    """Our own sessions read the environment too: libpq, Dagster's instance, the GraphQL client."""
    isolated = isolated_environment(os.environ)
    for name in set(os.environ) - isolated.keys():
        del os.environ[name]
    os.environ.update(isolated)


def _start_servers(state: Path, up: ExitStack, say: Say) -> tuple[Addresses, list[Service]]:
    postgres = up.enter_context(embedded_postgres(state / "postgres"))
    say("PostgreSQL is up")
    kafka = up.enter_context(embedded_kafka(state / "kafka"))
    say("Kafka is up")
    owner_url = postgres.database("support")
    upgrade(owner_url, with_tickets=True)
    settings = KafkaSettings(kafka.bootstrap_servers)
    create_topics(settings)
    check_agreement(state, owner_url, settings)
    with psycopg.connect(owner_url, autocommit=True) as connection:
        if connection.execute("select count(*) from support.tickets").fetchone() == (0,):
            count = load_stock(connection, read_log(), datetime.now(UTC))
            say(f"{count} tickets of a real service desk are in stock")
    addresses = Addresses(
        worker_url=worker_login(owner_url),
        owner_url=owner_url,
        bootstrap_servers=settings.bootstrap_servers,
        dagster_home=state / "dagster",
        dagster_url=postgres.database("dagster"),
    )
    return addresses, [postgres.service, kafka.service]


def _start_dagster(
    state: Path, dagster_yaml: Path, addresses: Addresses, up: ExitStack, say: Say
) -> tuple[list[Service], dg.DagsterInstance, str]:
    home = addresses.dagster_home
    home.mkdir(exist_ok=True)
    shutil.copyfile(dagster_yaml, home / "dagster.yaml")
    web_port = _web_port(up)
    (code_port,) = free_ports(1)
    (home / "workspace.yaml").write_text(
        f"load_from:\n  - grpc_server: {{host: 127.0.0.1, port: {code_port}, location_name: {_LOCATION}}}\n"
    )
    # the instance that this process opens reads its database's URL from here, too
    os.environ.update(addresses.variables())
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    instance = up.enter_context(dg.DagsterInstance.from_config(str(home)))
    _fail_runs_left_over(instance)

    def child(name: str, *arguments: str) -> Service:
        log = state / f"dagster-{name.replace(' ', '-')}.log"
        return up.enter_context(
            Service(f"Dagster's {name}", [sys.executable, "-m", *arguments], log, env=environment, cwd=home)
        )

    code = child(
        "code server",
        *f"dagster api grpc -m sla_pipeline.definitions -h 127.0.0.1 -p {code_port}".split(),
        "--location-name",
        _LOCATION,
    )
    web = child("webserver", *f"dagster_webserver -h 127.0.0.1 -p {web_port} -w workspace.yaml".split())
    code.wait_until(lambda: listens(code_port), _DAGSTER_START_SECONDS)
    daemon = child("daemon", *["dagster._daemon", "run", "-w", "workspace.yaml"])
    web.wait_until(lambda: listens(web_port), _DAGSTER_START_SECONDS)
    say(f"Dagster is up: open http://127.0.0.1:{web_port} (Ctrl-C stops everything; logs and data are in {state})")
    # the first cycle now, not at the next full minute
    client = DagsterGraphQLClient("127.0.0.1", port_number=web_port)
    first_run = client.submit_job_execution(_JOB, repository_location_name=_LOCATION)
    return [code, web, daemon], instance, first_run


def _fail_runs_left_over(instance: dg.DagsterInstance) -> None:
    """A run in flight when an earlier demo was killed died with it, and Dagster's launcher never finds that out."""
    in_flight = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
    for run in instance.get_runs(dg.RunsFilter(statuses=in_flight)):
        instance.report_run_failed(run, "the demo that ran it was stopped")


def _web_port(up: ExitStack) -> int:
    """The usual port, or a free one where it is taken, also by a demo whose webserver does not listen yet.

    A UDP socket of the same number, held until ``up`` closes, shows the other demos that the port is taken.
    """
    held = up.enter_context(socket.socket(type=socket.SOCK_DGRAM))
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind(("127.0.0.1", _USUAL_WEB_PORT))
            probe.bind(("127.0.0.1", _USUAL_WEB_PORT))
        except OSError:
            return free_ports(1)[0]
    return _USUAL_WEB_PORT


@contextmanager
def _traffic(owner_url: str) -> Iterator["Future[None]"]:
    stop = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="ticket traffic") as pool:
        try:
            yield pool.submit(Traffic(owner_url).run, stop)
        finally:
            stop.set()


def _is_scheduled(instance: dg.DagsterInstance, run_id: str) -> bool:
    run = instance.get_run_by_id(run_id)
    return run is not None and _SCHEDULE_TAG in run.tags


class _Watch:
    """Reader of the journal: returns the cycles that have ended since the last call."""

    def __init__(self, owner_url: str) -> None:
        self._owner_url = owner_url
        with psycopg.connect(owner_url, autocommit=True) as connection:
            self._last_id = journal.last_cycle_id(connection)

    def finished(self) -> list[journal.FinishedCycle]:
        with psycopg.connect(self._owner_url, autocommit=True) as connection:
            cycles = journal.finished_after(connection, self._last_id)
        self._last_id = max((cycle.cycle_id for cycle in cycles), default=self._last_id)
        return cycles


def _line(cycle: journal.FinishedCycle) -> str:
    text = cycle.totals.as_line() if cycle.state == "succeeded" else next(iter((cycle.error or "").splitlines()), "")
    return f"{cycle.finished_at:%H:%M:%S} cycle {cycle.cycle_id} {cycle.state}: {text}"
