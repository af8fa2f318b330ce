import os
import re
import shutil
import socket
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest

from sla_pipeline.embedded import ServiceError, embedded_postgres
from sla_pipeline_tests.conftest import PostgresFactory
from sla_pipeline_tests.integration.embedded.conftest import KillableParent, PollUntil, is_gone

PARENT = """
import sys, time
from pathlib import Path
from sla_pipeline.embedded import embedded_postgres
with embedded_postgres(Path(sys.argv[1])) as server:
    print(server.service.pid, server.url, flush=True)
    time.sleep(300)
"""


def write(url: str, value: int) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("create table if not exists kept (value integer)")
        connection.execute("insert into kept values (%s)", (value,))


def read(url: str) -> list[int]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("select value from kept order by value")]


def test_a_killed_parent_leaves_no_server_and_the_next_one_keeps_the_cluster_in_any_folder(
    state: Path, killable_parent: KillableParent
) -> None:
    with killable_parent(PARENT, state) as (orphan, url):
        write(url, 1)
    with embedded_postgres(state) as server:
        assert is_gone(int(orphan))
        assert read(server.url) == [1]
        with (
            pytest.raises(ServiceError, match=re.escape(f"PostgreSQL in {state} is in use by another process")),
            embedded_postgres(state),
        ):
            pass
        server.service.check()
    assert (state / "postgres.password").stat().st_mode & 0o777 == 0o600


def test_the_server_is_a_durable_postgres_18_that_sorts_alike_everywhere(state: Path) -> None:
    with embedded_postgres(state) as server, psycopg.connect(server.database("an app")) as connection:
        assert connection.info.dbname == "an app"
        assert connection.info.server_version // 10_000 == 18
        assert connection.execute("show fsync").fetchone() == ("on",)
        assert connection.execute("select 'é' < 'z'").fetchone() == (False,)
        assert server.database("an app") == server.database("an app")


@pytest.mark.parametrize("durable", [True, False])
def test_a_killed_server_starts_again_on_the_same_port_with_all_that_was_committed(
    durable: bool, own_postgres: PostgresFactory, poll_until: PollUntil
) -> None:
    server = own_postgres(durable=durable)
    for value in range(3):
        with psycopg.connect(server.url) as connection:
            write(server.url, value)
            backends = psutil.Process(server.service.pid).children()
            server.kill()
            poll_until(lambda: all(is_gone(child.pid) for child in backends), 5)  # noqa: B023 - called here, not later
            with pytest.raises(psycopg.OperationalError):
                connection.execute("select 1")
        server.start()
    assert read(server.url) == [0, 1, 2]


def test_a_fast_stop_writes_a_checkpoint_and_an_immediate_one_recovers(own_postgres: PostgresFactory) -> None:
    server = own_postgres()
    for immediate, recovered in ((False, False), (True, True)):
        log_length = server.service.log.stat().st_size
        write(server.url, 1)
        server.stop(immediate=immediate)
        server.start()
        assert ("automatic recovery in progress" in server.service.log.read_text()[log_length:]) == recovered
    assert read(server.url) == [1, 1]


def test_a_paused_server_does_not_answer_and_answers_again_once_resumed(own_postgres: PostgresFactory) -> None:
    server = own_postgres()
    with psycopg.connect(server.url) as connection:
        server.pause()
        with pytest.raises(psycopg.OperationalError, match="timeout"):
            psycopg.connect(server.url, connect_timeout=2)
        server.resume()
        assert connection.execute("select 1").fetchone() == (1,)


def test_a_port_taken_by_someone_else_is_reported_with_the_end_of_the_log(own_postgres: PostgresFactory) -> None:
    server = own_postgres()
    server.stop()
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", urlsplit(server.url).port))
        taken.listen()
        # Another program answers on the port, so the wait ends when the server dies.
        with pytest.raises(ServiceError, match=r"(?s)PostgreSQL ended with exit status 1.*Address already in use"):
            server.start()
    server.stop()
    server.start()
    with psycopg.connect(server.url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_nobody_gets_in_without_the_password(own_postgres: PostgresFactory) -> None:
    server = urlsplit(own_postgres().url)
    for user in ("postgres@", "postgres:wrong@"):
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(
                server._replace(netloc=f"{user}{server.hostname}:{server.port}").geturl(), passfile="/dev/null"
            )


def test_a_server_does_not_show_its_password(own_postgres: PostgresFactory) -> None:
    server = own_postgres()
    password = urlsplit(server.url).password
    assert password is not None
    assert password not in repr(server)
    assert password not in " ".join(psutil.Process(server.service.pid).cmdline())


def test_a_state_folder_without_its_password_starts_with_an_empty_server(state: Path) -> None:
    with embedded_postgres(state, durable=False) as server:
        write(server.url, 1)
    (state / "postgres.password").unlink()
    with embedded_postgres(state, durable=False) as server, pytest.raises(psycopg.errors.UndefinedTable):
        read(server.url)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to leave root")
def test_root_runs_the_server_as_nobody_even_where_nobody_cannot_go(
    tmp_path: Path, own_postgres: PostgresFactory
) -> None:
    assert psutil.Process(own_postgres().service.pid).username() == "nobody"
    # Other users cannot enter pytest's folders, as they cannot enter /root.
    with embedded_postgres(tmp_path / "hidden", durable=False) as server:
        process = psutil.Process(server.service.pid)
        home = Path(process.cwd()).parent
        assert process.username() == "nobody"
    try:
        assert home.parent == Path("/var/tmp")  # noqa: S108
        assert home.stat().st_mode & 0o777 == 0o700
        assert tmp_path.stat().st_mode & 0o777 == 0o700
    finally:
        shutil.rmtree(home)
