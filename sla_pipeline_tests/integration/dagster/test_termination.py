"""Termination of a run (SPEC 3.4): saved batches stay, the open one rolls back, no lock is left, the run is CANCELED.

The run is a process of its own on an instance with Postgres storage. It is terminated as the launcher does it: the run
is reported canceling, its process gets SIGINT. While a batch is open the process waits inside a statement: a trigger of
the support service waits for a lock that the test holds.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest

from sla_pipeline_tests.integration.conftest import Events
from sla_pipeline_tests.integration.dagster.conftest import REPOSITORY, launchpad
from sla_pipeline_tests.tickets import breached_ids, make_tickets
from sla_pipeline_tests.waiting import wait_until

Support = psycopg.Connection[Any]
_GATE = 4_711
_WAITS_AT_THE_GATE = (
    "select pid from pg_stat_activity where datname = current_database() and application_name = 'ticket-sla-monitor "
    "cycle' and wait_event = 'advisory'"
)


@contextlib.contextmanager
def _gate_before(support: Support, ticket_id: str) -> Iterator[None]:
    """Make every session that marks the ticket wait until the end of the block."""
    support.execute("select pg_advisory_lock(%s)", (_GATE,))
    support.execute(
        f"create function support.gate() returns trigger language plpgsql as $$ begin"
        f" if new.id = '{ticket_id}' then perform pg_advisory_xact_lock_shared({_GATE}); end if; return new; end $$"
    )
    support.execute("create trigger gate before update on support.tickets for each row execute function support.gate()")
    yield
    support.execute("select pg_advisory_unlock(%s)", (_GATE,))
    support.execute("drop function support.gate() cascade")


def _start_run(home: Path, **config: object) -> "subprocess.Popen[bytes]":
    # JSON is YAML too
    (home / "run.yaml").write_text(json.dumps(launchpad(**config)))
    command = [
        "dagster",
        "job",
        "execute",
        "-m",
        "sla_pipeline.definitions",
        "-j",
        "ticket_sla_monitor",
        "-c",
        str(home / "run.yaml"),
    ]
    with (home / "run.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", *command], cwd=REPOSITORY, env=dict(os.environ), stdout=log, stderr=log
        )


def _is_inside_the_batch(process: "subprocess.Popen[bytes]", support: Support, home: Path) -> bool:
    assert process.poll() is None, (home / "run.log").read_text()
    return bool(support.execute(_WAITS_AT_THE_GATE).fetchall())


@pytest.fixture
def terminated(
    request: pytest.FixtureRequest, support: Support, home: Path, instance: dg.DagsterInstance
) -> tuple[list[str], dg.DagsterRun, list[int]]:
    """The tickets, a run that was terminated inside batch 3 of 10, and its sessions at that time."""
    tickets = make_tickets(support, 100, first_response_due_at=datetime(2026, 1, 1, tzinfo=UTC))
    with _gate_before(support, tickets[25]):
        process = _start_run(home, batch_size=10)
        wait_until(
            lambda: _is_inside_the_batch(process, support, home), what="the run to be inside batch 3", seconds=120
        )
        sessions = [pid for (pid,) in support.execute(_WAITS_AT_THE_GATE)]
        (run,) = instance.get_runs()
        instance.report_run_canceling(run)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
        # The gate is still closed: the batch rolls back although its statement waits.
        wait_until(lambda: not support.execute(_WAITS_AT_THE_GATE).fetchall(), what="the server to end the statement")
    ended = instance.get_run_by_id(run.run_id)
    assert ended is not None
    return tickets, ended, sessions


def test_stop_between_batches(
    terminated: tuple[list[str], dg.DagsterRun, list[int]],
    support: Support,
    job: dg.JobDefinition,
    ephemeral: dg.DagsterInstance,
    events: Events,
) -> None:
    tickets, run, _ = terminated
    assert run.status is dg.DagsterRunStatus.CANCELED
    assert breached_ids(support) == set(tickets[:20])
    assert events() == []
    assert support.execute(
        "select run_id, state, claimed_count, processed_count from support.ticket_sla_cycles"
    ).fetchall() == [(run.run_id, "canceled", 100, 20)]
    assert job.execute_in_process(instance=ephemeral).success
    assert [event.ticket_id for event in events()] == tickets
    assert [state for (state,) in support.execute("select state from support.ticket_sla_cycles order by id")] == [
        "canceled",
        "succeeded",
    ]


def test_stop_inside_a_batch(terminated: tuple[list[str], dg.DagsterRun, list[int]], support: Support) -> None:
    tickets, run, sessions = terminated
    assert run.status is dg.DagsterRunStatus.CANCELED
    assert breached_ids(support).isdisjoint(tickets[20:])
    assert support.execute("select last_seq from support.ticket_sla_relay for update nowait").fetchall() == [(20,)]
    assert len(support.execute("select 1 from support.tickets for update nowait").fetchall()) == 100
    assert support.execute("select 1 from pg_stat_activity where pid = any(%s)", (sessions,)).fetchall() == []
    assert support.execute("select 1 from pg_locks where locktype = 'advisory' and database = (select oid from "
                           "pg_database where datname = current_database())").fetchall() == []  # fmt: skip
