"""Unusable demo folders: one line with folder, cause, remedy and loss, and the documented exit code."""

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import psycopg
import pytest

from sla_pipeline.demo.folder import folder_errors_explained, locked_folder
from sla_pipeline.embedded import ServiceError, embedded_kafka, embedded_postgres
from sla_pipeline.errors import InputError, KafkaUnavailable, PostgresSetupError
from sla_pipeline.kafka.relay import Relay
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import create_topics
from sla_pipeline.monitor.runner import run_cycle
from sla_pipeline.postgres.database import Database
from sla_pipeline.postgres.migrate import upgrade
from sla_pipeline.postgres.schema import SCHEMA, VERSION_TABLE
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline_tests.integration.dagster.conftest import REPOSITORY
from sla_pipeline_tests.rights import without_rights
from sla_pipeline_tests.shared_servers import server_folder
from sla_pipeline_tests.tickets import MINUTE, make_ticket

LOSS = "and start again (the demo's tickets, events and Dagster runs are lost)"


@pytest.fixture
def state() -> Iterator[Path]:
    with server_folder() as folder:
        yield folder / "a demo"


def run_demo_on(state: Path) -> tuple[int, str]:
    """Run one cycle of the demo; return the exit code and the standard error output."""
    command = [
        sys.executable,
        "-c",
        "from sla_pipeline.cli import main; main()",
        "demo",
        "--state",
        str(state),
        "--cycles",
        "1",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150, cwd=REPOSITORY)
    return ended.returncode, ended.stderr


def make_postgres(state: Path) -> None:
    with embedded_postgres(state / "postgres", durable=False) as postgres:
        upgrade(postgres.database("support"), with_tickets=True)


def test_data_of_another_major_version(state: Path) -> None:
    make_postgres(state)
    version = state / "postgres" / "postgres" / "data" / "PG_VERSION"
    version.write_text("17\n")
    assert run_demo_on(state) == (
        3,
        f"sla-pipeline: the demo cannot use its folder {state}: {version.parent} was made by PostgreSQL '17', and "
        "this is PostgreSQL 18; "
        f"remove {state} {LOSS}\n",
    )


def test_database_of_another_version_of_the_product(state: Path) -> None:
    with embedded_postgres(state / "postgres", durable=False) as postgres:
        upgrade(postgres.database("support"), with_tickets=True)
        with psycopg.connect(postgres.database("support")) as connection:
            connection.execute(
                f"update {SCHEMA}.{VERSION_TABLE} set version_num = 'sla_9999' where version_num like 'sla%'"
            )
    code, printed = run_demo_on(state)
    assert code == 3
    assert re.fullmatch(
        rf"sla-pipeline: the demo cannot use its folder {re.escape(str(state))}: .*sla_9999.*; remove "
        rf"{re.escape(f'{state} {LOSS}')}\n",
        printed,
    )


@pytest.mark.parametrize("removed", ["kafka", "postgres"])
# it starts two servers twice
@pytest.mark.timeout(300)
def test_half_of_the_data_removed(state: Path, removed: str) -> None:
    with (
        embedded_postgres(state / "postgres", durable=False) as postgres,
        embedded_kafka(state / "kafka") as kafka,
    ):
        owner_url, settings = postgres.database("support"), KafkaSettings(kafka.bootstrap_servers)
        upgrade(owner_url, with_tickets=True)
        create_topics(settings)
        with psycopg.connect(owner_url, autocommit=True) as support:
            make_ticket(support, first_response_due_at=datetime.now(UTC) - MINUTE)
        database = Database(PostgresSettings(owner_url))
        with Relay(settings) as relay:
            assert run_cycle(database, relay).published_count == 1
        database.close()
    shutil.rmtree(state / removed)
    reason = {
        "kafka": "the progress record is missing or wrong",
        "postgres": "Postgres lacks records that are published",
    }[removed]
    assert run_demo_on(state) == (
        3,
        f"sla-pipeline: the demo cannot use its folder {state}: its postgres and its kafka do not belong together "
        f"({reason}); "
        f"remove {state} {LOSS}\n",
    )


def test_a_file_in_place_of_the_folder(state: Path) -> None:
    state.touch()
    code, printed = run_demo_on(state)
    assert code == 2
    assert f"dir '{state}' is a file" in " ".join(printed.replace("│", " ").split())
    with (
        pytest.raises(InputError, match=rf"the folder {state}: File exists; remove {state}, or name another folder"),
        locked_folder(state),
    ):
        pass


def test_a_file_in_place_of_a_servers_folder(state: Path) -> None:
    state.mkdir()
    (state / "postgres").touch()
    assert run_demo_on(state) == (
        3,
        f"sla-pipeline: the demo cannot use its folder {state}: {state / 'postgres'}: File exists; remove {state} "
        f"{LOSS}\n",
    )


def test_a_folder_that_cannot_be_made() -> None:
    with without_rights(), pytest.raises(InputError) as caught, locked_folder(Path("/a demo")):
        pass
    assert (
        str(caught.value)
        == "the demo cannot use the folder /a demo: Permission denied (/ belongs to root); name another one with "
        "--state"
    )


def test_a_lock_of_someone_else(state: Path) -> None:
    """As after `sudo make demo`."""
    state.mkdir()
    (state / "demo.lock").touch(mode=0o000)
    owner = f" ({state / 'demo.lock'} belongs to root)" if os.geteuid() == 0 else ""
    with without_rights(), pytest.raises(InputError) as caught, locked_folder(state):
        pass
    assert str(caught.value) == (
        f"the demo cannot use the folder {state}: {state / 'demo.lock'}: Permission denied{owner}; "
        f"remove {state}, or name another folder with --state"
    )


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "the disk is full; free or remount it, or name another folder with --state",
        ),
        (
            OSError(errno.EROFS, "Read-only", "/demo/kafka/x"),
            "/demo/kafka/x: the disk is read-only; free or remount it, or name another",
        ),
        (
            ServiceError("initdb failed: HINT:  Check free disk space."),
            "the disk is full; free or remount it, or name another folder",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "/demo/dagster"),
            f"/demo/dagster: Permission denied; remove /demo {LOSS}",
        ),
        (PostgresSetupError("column x is missing\nsecond line"), f"column x is missing; remove /demo {LOSS}"),
        (psycopg.DataError("invalid page in block 0"), f"invalid page in block 0; remove /demo {LOSS}"),
        (
            dg.DagsterInvariantViolationError("no such revision"),
            f"Dagster's storage: no such revision; remove /demo {LOSS}",
        ),
    ],
)
def test_each_kind_of_fault_is_one_line(error: Exception, message: str) -> None:
    with pytest.raises(ServiceError) as caught, folder_errors_explained(Path("/demo")):
        raise error
    assert str(caught.value).startswith(f"the demo cannot use its folder /demo: {message}")
    assert "\n" not in str(caught.value)


def test_a_slow_machine_loses_nothing_at_the_first_try() -> None:
    with pytest.raises(ServiceError) as caught, folder_errors_explained(Path("/demo")):
        raise KafkaUnavailable("no answer in 20 s")
    assert (
        str(caught.value)
        == f"the demo did not start: no answer in 20 s; start again, and if that fails too, remove /demo {LOSS}"
    )


@pytest.mark.parametrize(
    "error", [FileNotFoundError(errno.ENOENT, "No such file", "/usr/bin/env"), ServiceError("port 3000 is taken")]
)
def test_what_is_no_fault_of_the_folder_is_not_blamed_on_it(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, folder_errors_explained(Path("/demo")):
        raise error
    assert caught.value is error
