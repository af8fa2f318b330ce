"""Unexpected end of a part of the demo: one error names it, whichever part notices it first."""

from concurrent.futures import Future
from pathlib import Path

import psycopg
import pytest

from sla_pipeline.demo.run import _unexpected_exits_raised
from sla_pipeline.embedded import Service, ServiceError
from sla_pipeline.errors import PostgresUnavailable

TrafficFuture = Future[None]


def test_a_server_that_was_killed_is_named_and_not_the_drivers_error(tmp_path: Path) -> None:
    with Service("PostgreSQL", ["/bin/sh", "-c", "echo the last words; exit 7"], tmp_path / "log") as service:
        with pytest.raises(ServiceError):
            service.wait_until(lambda: False, 60)
        for error in (psycopg.OperationalError("connection refused"), None):
            named = pytest.raises(ServiceError, match=r"(?s)^PostgreSQL ended with exit status 7; .*the last words")
            with named, _unexpected_exits_raised([service], TrafficFuture()):
                if error:
                    raise error


def test_a_session_that_is_refused_by_servers_that_run(tmp_path: Path) -> None:
    with Service("PostgreSQL", ["/bin/sleep", "60"], tmp_path / "log") as service:
        one_line = pytest.raises(ServiceError, match=r"^the demo cannot read its own cycles: too many clients$")
        with one_line, _unexpected_exits_raised([service], TrafficFuture()):
            raise psycopg.OperationalError("too many clients\nsecond line")
        with _unexpected_exits_raised([service], TrafficFuture()):
            pass


def test_the_traffics_error_is_one_line() -> None:
    traffic = TrafficFuture()
    traffic.set_exception(PostgresUnavailable("no connection to database 'support'"))
    one_line = pytest.raises(
        ServiceError, match=r"^the ticket traffic ended unexpectedly: no connection to database 'support'$"
    )
    with one_line, _unexpected_exits_raised([], traffic):
        pass
