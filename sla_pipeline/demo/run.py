"""Start and stop of the demo: PostgreSQL, Kafka, Dagster's three processes and ticket traffic.

Dagster runs as code server, webserver and daemon on the production ``dagster.yaml``. It stops before the servers;
otherwise its processes would retry a closed database for a minute.
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
from sla_pipeline.demo.folder import check_consistency, folder_errors_explained, locked_folder
from sla_pipeline.demo.incident_log import read_log
from sla_pipeline.demo.traffic import Traffic, load_initial_tickets
from sla_pipeline.demo.worker_login import worker_login
from sla_pipeline.embedded import Service, ServiceError, embedded_kafka, embedded_postgres, free_ports
from sla_pipeline.embedded.ports import listens
from sla_pipeline.errors import InputError
from sla_pipeline.health import FinishedCycle
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import create_topics
from sla_pipeline.postgres import journal
from sla_pipeline.postgres.faults import first_line
from sla_pipeline.postgres.migrate import upgrade
from sla_pipeline.postgres.session import PostgresSettings

__all__ = ["run_demo"]

PrintLine = Callable[[str], None]

_LOCATION = "sla_pipeline"
_JOB = "ticket_sla_monitor"
_SCHEDULE_TAG = "dagster/schedule_name"
# Dagster's usual port; a free one is used when it is taken
_USUAL_WEB_PORT = 3000
# Dagster's imports take long on a busy machine
_DAGSTER_START_SECONDS = 300.0
_METRICS_START_SECONDS = 60.0
# timeout per scheduled cycle: twice the schedule's minute, and a slow start
_SECONDS_PER_CYCLE = 150.0
_POLL_SECONDS = 0.5
_ENV_FILE = "env"


def run_demo(state: Path, *, cycles: int | None, print_line: PrintLine) -> AuditReport:
    """Run the demo until interrupted; with ``cycles``, until that many scheduled cycles have ended. Then compare.

    ``state``, an absolute path, keeps the data from run to run; one demo at a time may use it. Settings of the caller's
    environment are removed from this process. Raises ``ServiceError`` when a process ends unexpectedly or the data in
    ``state`` cannot be used, ``InputError`` when the folder cannot be used, and outside of a checkout.
    """
    dagster_yaml = Path(__file__).resolve().parents[2] / "dagster.yaml"
    if not dagster_yaml.exists():
        raise InputError(
            f"{dagster_yaml} is missing: the demo runs from a checkout of the project, on its own dagster.yaml"
        )
    _isolate_this_process()
    with locked_folder(state), ExitStack() as servers_stack:
        with folder_errors_explained(state):
            # left by a killed demo; its passwords are no longer valid
            (state / _ENV_FILE).unlink(missing_ok=True)
            addresses, servers = _start_servers(state, servers_stack, print_line)
            reader = _CycleReader(addresses.owner_url)
        with ExitStack() as clients_stack:
            with folder_errors_explained(state):
                children, instance, first_run = _start_dagster(
                    state, dagster_yaml, addresses, clients_stack, print_line
                )
                children.append(_start_metrics(state, clients_stack, print_line))
                clients_stack.enter_context(second_shell_file(state / _ENV_FILE, addresses))
            print_line(f"to run commands against it, in another shell: . {shlex.quote(str(state / _ENV_FILE))}")
            traffic = clients_stack.enter_context(_traffic(addresses.owner_url))
            timeout_seconds = cycles * _SECONDS_PER_CYCLE if cycles else math.inf
            deadline = time.monotonic() + timeout_seconds
            scheduled = 0
            while cycles is None or scheduled < cycles:
                with _unexpected_exits_raised([*servers, *children], traffic):
                    for cycle in reader.newly_finished():
                        by_schedule = cycle.run_id != first_run and _is_scheduled(instance, cycle.run_id)
                        scheduled += by_schedule
                        print_line(_cycle_line(cycle))
                if time.monotonic() > deadline:
                    raise ServiceError(
                        f"only {scheduled} of {cycles} scheduled cycles ended in {timeout_seconds:.0f} s; see the "
                        f"logs in {state}"
                    )
                time.sleep(_POLL_SECONDS)
        print_line("traffic and Dagster are stopped; comparing tickets, breach records and events")
        kafka = KafkaSettings(addresses.bootstrap_servers)
        return verify(PostgresSettings(addresses.worker_url), kafka, now_utc=datetime.now(UTC))


@contextmanager
def _unexpected_exits_raised(services: Sequence[Service], traffic: "Future[None]") -> Iterator[None]:
    """Raise ``ServiceError`` that names a service or traffic that has ended, in place of a driver's error."""
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
            "the ticket traffic ended unexpectedly: "
            f"{first_line(traffic.exception() or ServiceError('it was stopped'))}"
        )


def _isolate_this_process() -> None:
    """Remove foreign settings from this process, whose libpq, Dagster instance and GraphQL client read them too."""
    isolated = isolated_environment(os.environ)
    for name in set(os.environ) - isolated.keys():
        del os.environ[name]
    os.environ.update(isolated)


def _start_servers(state: Path, stack: ExitStack, print_line: PrintLine) -> tuple[Addresses, list[Service]]:
    postgres = stack.enter_context(embedded_postgres(state / "postgres"))
    print_line("PostgreSQL is up")
    kafka = stack.enter_context(embedded_kafka(state / "kafka"))
    print_line("Kafka is up")
    owner_url = postgres.database("support")
    upgrade(owner_url, with_tickets=True)
    settings = KafkaSettings(kafka.bootstrap_servers)
    create_topics(settings)
    check_consistency(state, owner_url, settings)
    with psycopg.connect(owner_url, autocommit=True) as connection:
        if connection.execute("select count(*) from support.tickets").fetchone() == (0,):
            count = load_initial_tickets(connection, read_log(), datetime.now(UTC))
            print_line(f"loaded {count} tickets of a real service desk")
    addresses = Addresses(
        worker_url=worker_login(owner_url),
        owner_url=owner_url,
        bootstrap_servers=settings.bootstrap_servers,
        dagster_home=state / "dagster",
        dagster_url=postgres.database("dagster"),
    )
    return addresses, [postgres.service, kafka.service]


def _start_dagster(
    state: Path, dagster_yaml: Path, addresses: Addresses, stack: ExitStack, print_line: PrintLine
) -> tuple[list[Service], dg.DagsterInstance, str]:
    home = addresses.dagster_home
    home.mkdir(exist_ok=True)
    shutil.copyfile(dagster_yaml, home / "dagster.yaml")
    web_port = _reserved_web_port(stack)
    (code_port,) = free_ports(1)
    (home / "workspace.yaml").write_text(
        f"load_from:\n  - grpc_server: {{host: 127.0.0.1, port: {code_port}, location_name: {_LOCATION}}}\n"
    )
    # the Dagster instance of this process reads its database's URL from the environment
    os.environ.update(addresses.variables())
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    instance = stack.enter_context(dg.DagsterInstance.from_config(str(home)))
    _fail_abandoned_runs(instance)

    def start(name: str, *arguments: str) -> Service:
        log = state / f"dagster-{name.replace(' ', '-')}.log"
        return stack.enter_context(
            Service(f"Dagster's {name}", [sys.executable, "-m", *arguments], log, env=environment, cwd=home)
        )

    code = start(
        "code server",
        *f"dagster api grpc -m sla_pipeline.definitions -h 127.0.0.1 -p {code_port}".split(),
        "--location-name",
        _LOCATION,
    )
    web = start("webserver", *f"dagster_webserver -h 127.0.0.1 -p {web_port} -w workspace.yaml".split())
    code.wait_until(lambda: listens(code_port), _DAGSTER_START_SECONDS)
    daemon = start("daemon", *["dagster._daemon", "run", "-w", "workspace.yaml"])
    web.wait_until(lambda: listens(web_port), _DAGSTER_START_SECONDS)
    print_line(
        f"Dagster is up: open http://127.0.0.1:{web_port} (Ctrl-C stops everything; logs and data are in {state})"
    )
    # start a first cycle at once, not at the next full minute
    client = DagsterGraphQLClient("127.0.0.1", port_number=web_port)
    first_run = client.submit_job_execution(_JOB, repository_location_name=_LOCATION)
    return [code, web, daemon], instance, first_run


def _start_metrics(state: Path, stack: ExitStack, print_line: PrintLine) -> Service:
    (port,) = free_ports(1)
    command = ["-c", "from sla_pipeline.entry import main; main()", "metrics", "--port", str(port)]
    exporter = stack.enter_context(Service("the exporter", [sys.executable, *command], state / "metrics.log"))
    exporter.wait_until(lambda: listens(port), _METRICS_START_SECONDS)
    print_line(f"metrics for Prometheus: http://127.0.0.1:{port}/metrics")
    return exporter


def _fail_abandoned_runs(instance: dg.DagsterInstance) -> None:
    """Fail the runs of a killed demo: they ended with it, and Dagster's launcher does not notice."""
    in_flight = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
    for run in instance.get_runs(dg.RunsFilter(statuses=in_flight)):
        instance.report_run_failed(run, "the demo that ran it was stopped")


def _reserved_web_port(stack: ExitStack) -> int:
    """Return the usual port, or a free one when another demo or another program has taken it.

    A UDP socket on the same number, open until ``stack`` closes, reserves the port among demos whose webservers do not
    listen yet.
    """
    reserved = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            reserved.bind(("127.0.0.1", _USUAL_WEB_PORT))
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


class _CycleReader:
    """Reader of the cycles in the journal that have ended since the last call."""

    def __init__(self, owner_url: str) -> None:
        self._owner_url = owner_url
        with psycopg.connect(owner_url, autocommit=True) as connection:
            self._last_id = journal.last_cycle_id(connection)

    def newly_finished(self) -> list[FinishedCycle]:
        with psycopg.connect(self._owner_url, autocommit=True) as connection:
            cycles = journal.finished_after(connection, self._last_id)
        self._last_id = max((cycle.cycle_id for cycle in cycles), default=self._last_id)
        return cycles


def _cycle_line(cycle: FinishedCycle) -> str:
    text = cycle.totals.as_line() if cycle.state == "succeeded" else next(iter((cycle.error or "").splitlines()), "")
    return f"{cycle.finished_at:%H:%M:%S} cycle {cycle.cycle_id} {cycle.state}: {text}"
