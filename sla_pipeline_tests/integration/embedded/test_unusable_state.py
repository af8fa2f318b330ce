"""Servers on data that they cannot use: the error names the folder, the cause and the remedy, on one line."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sla_pipeline.embedded import Service, ServiceError, UnusableState, embedded_kafka, embedded_postgres
from sla_pipeline_tests.shared_servers import server_folder

DATA = Path("postgres", "data")
LOG = Path("kafka", "data")


@pytest.fixture(scope="module")
def postgres_state() -> Iterator[Path]:
    """A state folder whose server has run and is stopped."""
    with server_folder() as folder:
        with embedded_postgres(folder, durable=False):
            pass
        yield folder


@pytest.fixture(scope="module")
def kafka_state() -> Iterator[Path]:
    with server_folder() as folder:
        with embedded_kafka(folder):
            pass
        yield folder


@pytest.fixture
def copy_of() -> Iterator[Callable[[Path], Path]]:
    """Copies with owners and rights: root's PostgreSQL runs as nobody."""
    with server_folder() as folder:

        def copy(state: Path) -> Path:
            subprocess.run(["/bin/cp", "-a", state, folder / "state"], check=True)
            return folder / "state"

        yield copy


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def replace_by_a_file(path: Path) -> None:
    remove(path)
    path.touch()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def write(text: str) -> Callable[[Path], None]:
    def overwrite(path: Path) -> None:
        path.write_text(text)

    return overwrite


@pytest.mark.parametrize(
    ("path", "damage", "cause"),
    [
        (DATA / "PG_VERSION", remove, "data is not a PostgreSQL data directory: it has no file PG_VERSION"),
        (DATA, replace_by_a_file, "data is not a PostgreSQL data directory: it has no file PG_VERSION"),
        (DATA / "PG_VERSION", write("17\n"), "data was made by PostgreSQL '17', and this is PostgreSQL 18"),
        (DATA / "PG_VERSION", empty, "data was made by PostgreSQL '', and this is PostgreSQL 18"),
        (DATA / "global" / "pg_control", remove, "could not find the database system"),
        (DATA / "global" / "pg_control", empty, 'could not read file "global/pg_control"'),
        (DATA / "pg_wal", remove, 'required WAL directory "pg_wal" does not exist'),
        (DATA / "base", remove, 'database "postgres" does not exist'),
        (DATA, lambda path: path.chmod(0o755), "has invalid permissions"),
        (Path("postgres.password"), empty, "postgres.password does not hold the password that was written there"),
        (Path("postgres.password"), write("a" * 22), 'password authentication failed for user "postgres"'),
    ],
)
def test_postgres_on_data_that_it_cannot_use(
    postgres_state: Path, copy_of: Callable[[Path], Path], path: Path, damage: Callable[[Path], None], cause: str
) -> None:
    state = copy_of(postgres_state)
    damage(state / path)
    with pytest.raises(UnusableState) as caught, embedded_postgres(state):
        pass
    assert cause in caught.value.cause
    assert re.fullmatch(
        rf".*{re.escape(str(state))}.*; remove {re.escape(str(state))} to start with an empty server", str(caught.value)
    )


@pytest.mark.parametrize(
    ("path", "damage", "cause"),
    [
        (LOG / "meta.properties", remove, "data is not a log of Kafka: it has no file meta.properties"),
        (LOG, replace_by_a_file, "data is not a log of Kafka: it has no file meta.properties"),
        (LOG / "meta.properties", write("garbage"), "java.lang.RuntimeException"),
    ],
)
def test_kafka_on_a_log_that_it_cannot_use(
    kafka_state: Path, copy_of: Callable[[Path], Path], path: Path, damage: Callable[[Path], None], cause: str
) -> None:
    state = copy_of(kafka_state)
    damage(state / path)
    with pytest.raises(UnusableState) as caught, embedded_kafka(state):
        pass
    assert cause in caught.value.cause
    assert re.fullmatch(
        rf".*{re.escape(str(state))}.*; remove {re.escape(str(state))} to start with an empty server", str(caught.value)
    )


def test_a_server_that_cannot_be_reached_says_what_the_last_attempt_met(
    postgres_state: Path, copy_of: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of the environment is not blamed on the data."""
    monkeypatch.setenv("PGSSLMODE", "require")
    monkeypatch.setattr(Service.wait_until, "__defaults__", (2.0,))
    with (
        pytest.raises(ServiceError, match=r"the last attempt to connect: .*SSL") as caught,
        embedded_postgres(copy_of(postgres_state)),
    ):
        pass
    assert not isinstance(caught.value, UnusableState)
