"""A partitioned table of the support service: its indexes, built beside writers, and a whole cycle on it."""

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy

from sla_pipeline.audit.verify import verify
from sla_pipeline.cycle import SimulatedClock
from sla_pipeline.errors import PostgresBusy, PostgresSetupError
from sla_pipeline.kafka.relay import Relay
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.monitor.runner import run_cycle
from sla_pipeline.postgres.database import Database
from sla_pipeline.postgres.indexes import DEFINITIONS, OUR_INDEXES, missing_indexes
from sla_pipeline.postgres.migrate import downgrade, upgrade
from sla_pipeline.postgres.migrations import index_build
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline.postgres.tickets import claim, count_backlog, lock_batch, preview
from sla_pipeline_tests.integration.conftest import Events
from sla_pipeline_tests.integration.postgres.conftest import NewDatabase
from sla_pipeline_tests.integration.postgres.tables_of_others import make_hashed_table, make_table
from sla_pipeline_tests.tickets import (
    FIRST_RESPONSE_OVERDUE,
    NOW,
    RESOLUTION_OVERDUE,
    breached_ids,
    look,
    make_ticket,
    make_tickets,
)
from sla_pipeline_tests.waiting import wait_until

_LEAF_COUNT = 4
_FIRST, _RESOLUTION = OUR_INDEXES
# each of our indexes in the tree: its table, its name, whether it is valid, and how many are attached below it
_TREE = """
select t.oid::regclass::text, c.relname, i.indisvalid, t.relkind = 'p',
    (select count(*) from pg_inherits where inhparent = c.oid)
from pg_index i join pg_class c on c.oid = i.indexrelid join pg_class t on t.oid = i.indrelid
where c.relname like 'ticket_sla_%overdue%' order by 1, 2
"""


@pytest.fixture
def url(new_database: NewDatabase) -> str:
    """A database with a partitioned table of three partitions, one of them partitioned again."""
    url = new_database()
    make_hashed_table(url)
    return url


@pytest.fixture
def owner(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def _tree(owner: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return owner.execute(_TREE).fetchall()


def _missing(owner: psycopg.Connection[Any]) -> list[str]:
    return [index.name for index in missing_indexes(owner.execute(DEFINITIONS).fetchall())]


def _assert_built(owner: psycopg.Connection[Any]) -> None:
    """Assert two valid indexes on the table, each with three below, one of which has two."""
    tree = _tree(owner)
    assert len(tree) == 2 * (1 + 3 + 2)
    assert all(valid for _, _, valid, _, _ in tree)
    assert [(table, below) for table, _, _, partitioned, below in tree if partitioned] == [
        ('archive."old tickets"', 2),
        ('archive."old tickets"', 2),
        ("support.tickets", 3),
        ("support.tickets", 3),
    ]
    assert _missing(owner) == []


def test_each_partition_is_indexed_and_a_later_one_gets_its_index(url: str, owner: psycopg.Connection[Any]) -> None:
    upgrade(url)
    _assert_built(owner)
    before = _tree(owner)
    upgrade(url)
    assert _tree(owner) == before
    owner.execute('alter table archive."old tickets" detach partition archive.old_high')
    owner.execute('create table archive.later partition of archive."old tickets" default')
    assert [
        (table, valid)
        for table, _, valid, _, _ in owner.execute(
            _TREE.replace("c.relname like 'ticket_sla_%overdue%'", "t.relname = 'later' and i.indpred is not null")
        ).fetchall()
    ] == [
        ("archive.later", True),
        ("archive.later", True),
    ]
    assert _missing(owner) == []
    downgrade(url)
    # the detached partition keeps its indexes
    assert {table for table, *_ in _tree(owner)} == {"archive.old_high"}


def test_building_goes_on_wherever_it_was_interrupted(
    url: str, owner: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run stops after each statement. No statement is repeated, and in the end every index is valid."""
    executed: list[str] = []

    class Killed(Exception):
        pass

    def one_statement_only(run: Any) -> Any:
        def limited(connection: sqlalchemy.Connection, statement: str) -> None:
            run(connection, statement)
            if statement.startswith("drop index concurrently if exists"):
                return
            executed.append(statement)
            raise Killed

        return limited

    for name in ("_briefly", "_patiently"):
        monkeypatch.setattr(index_build, name, one_statement_only(getattr(index_build, name)))
    for _ in range(100):
        try:
            upgrade(url)
        except Killed:
            assert _missing(owner)[-1:] == [_RESOLUTION.name] or not _missing(owner)
        else:
            break
    _assert_built(owner)
    # one index for the table, and for each of the five partitions below an index and its attachment
    assert len(executed) == len(set(executed)) == 2 * (1 + 5 + 5)


def test_a_half_built_index_of_a_partition_is_built_again(url: str, owner: psycopg.Connection[Any]) -> None:
    upgrade(url)
    downgrade(url)
    ((oid,),) = owner.execute("select 'support.tickets_1'::regclass::oid").fetchall()
    half = f"{_FIRST.name}_{oid}"
    owner.execute(f"create index {half} on support.tickets_1 ({_FIRST.columns}) where {_FIRST.condition}".encode())
    owner.execute("update pg_index set indisvalid = false where indexrelid = %s::regclass", (f"support.{half}",))
    upgrade(url)
    _assert_built(owner)


def test_an_index_made_by_hand_counts_whatever_its_name(url: str, owner: psycopg.Connection[Any]) -> None:
    """On the whole table, or on one partition, where it is attached instead of built a second time."""
    owner.execute(f"create index by_hand on support.tickets ({_FIRST.columns}) where {_FIRST.condition}".encode())
    owner.execute(
        f'create index "of one" on support.tickets_0 ({_RESOLUTION.columns}) where {_RESOLUTION.condition}'.encode()
    )
    assert _missing(owner) == [_RESOLUTION.name]
    upgrade(url)
    assert _missing(owner) == []
    names = {name for _, name, _, _, _ in _tree(owner)}
    assert not any(name.startswith(_FIRST.name) for name in names)
    assert len(names) == 1 + 5 - 1
    attached = owner.execute(
        "select inhparent::regclass::text from pg_inherits where inhrelid = 'support.\"of one\"'::regclass"
    ).fetchone()
    assert attached == (f"support.{_RESOLUTION.name}",)


def test_an_attached_index_that_is_not_valid_is_reported_with_what_to_drop(
    url: str, owner: psycopg.Connection[Any]
) -> None:
    upgrade(url)
    ((oid,),) = owner.execute("select 'support.tickets_1'::regclass::oid").fetchall()
    owner.execute(
        "update pg_index set indisvalid = false where indexrelid = any(%s::regclass[])",
        ([f"support.{_FIRST.name}", f"support.{_FIRST.name}_{oid}"],),
    )
    assert _missing(owner) == [_FIRST.name]
    with pytest.raises(
        PostgresSetupError,
        match=rf"index support\.{_FIRST.name} is still not valid: .* \(`drop index support\.{_FIRST.name}`\) and run",
    ) as raised:
        upgrade(url)
    owner.execute(str(raised.value).split("`")[1].encode())
    upgrade(url)
    _assert_built(owner)


def test_writers_wait_for_a_moment_only_and_migrate_gives_up_where_the_table_is_held(
    url: str, owner: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`migrate` waits for the lock in short intervals, between which writers pass; the next run continues."""
    monkeypatch.setattr(index_build, "_BRIEF_WAIT_MS", 200)
    monkeypatch.setattr(index_build, "_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(index_build, "_BRIEF_TRIES_SECONDS", 1.0)
    failed: list[Exception] = []

    def migrate() -> None:
        try:
            upgrade(url)
        except PostgresBusy as busy:
            failed.append(busy)

    with psycopg.connect(url) as writer, psycopg.connect(url, autocommit=True) as other:
        make_ticket(writer)
        migrating = threading.Thread(target=migrate)
        migrating.start()
        wait_until(
            lambda: bool(
                owner.execute(
                    "select 1 from pg_locks where relation = 'support.tickets'::regclass and not granted"
                ).fetchall()
            ),
            what="the index to wait for the writer",
        )
        other.execute("set lock_timeout = '1s'")
        make_ticket(other)
        migrating.join(timeout=30)
        assert not migrating.is_alive()
    (busy,) = failed
    assert str(busy).startswith(f"`create index {_FIRST.name} on only support.tickets (")
    assert (
        "has waited 1 s for transactions that hold the table; what was built stays. End the oldest one (`select pid, "
        in str(busy)
    )
    oldest = owner.execute(str(busy).split("`")[3].encode()).fetchall()
    assert oldest
    upgrade(url)
    _assert_built(owner)


def test_a_concurrent_build_that_waits_too_long_is_reported_and_goes_on(
    url: str, owner: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_build, "_BUILD_WAIT_MS", 200)
    monkeypatch.setattr(index_build, "_BRIEF_WAIT_MS", 5_000)
    with psycopg.connect(url) as writer:
        # the lock is on a partition, so that the table itself is free
        writer.execute("lock table support.tickets_0 in row exclusive mode")
        with pytest.raises(
            PostgresBusy, match=r"`create index concurrently .* on support\.tickets_0 .*` has waited 0\.2 s"
        ):
            upgrade(url)
    assert [valid for table, _, valid, _, _ in _tree(owner) if table == "support.tickets_0"] == [False]
    upgrade(url)
    _assert_built(owner)


@pytest.mark.parametrize(
    ("suffix", "key", "after", "fault"),
    [
        (
            "partition by range (created_at)",
            "primary key (id, created_at)",
            ("create table support.tickets_all partition of support.tickets default",),
            "the table is partitioned by RANGE (created_at), and Postgres keeps a key unique within each partition "
            "only",
        ),
        (
            "partition by hash (id)",
            "",
            (
                "create table support.tickets_0 partition of support.tickets for values with (modulus 1, remainder 0)"
                " partition by list (status)",
                "create table support.tickets_00 partition of support.tickets_0 default",
            ),
            "the table is partitioned by LIST (status), and Postgres",
        ),
        ("partition by list (lower(number))", "", (), "the table is partitioned by LIST (an expression), and Postgres"),
        (
            "partition by hash (id)",
            "",
            (),
            "id has no valid unique index of its own, without a condition; two rows with one id would be one ticket; "
            "`create unique index on support.tickets (id)`",
        ),
    ],
    ids=["by time", "by status below", "by an expression", "without a key"],
)
def test_an_id_that_is_not_unique_over_all_partitions_is_refused_before_anything_is_touched(
    suffix: str, key: str, after: tuple[str, ...], fault: str, new_database: NewDatabase
) -> None:
    url = new_database()
    make_table(url, suffix=suffix, key=key, after=after)
    with pytest.raises(PostgresSetupError) as raised:
        upgrade(url)
    assert fault in str(raised.value)
    with psycopg.connect(url) as connection:
        assert connection.execute("select count(*) from pg_class where relname like 'ticket_sla%'").fetchone() == (0,)


def test_a_whole_cycle_on_a_partitioned_table(
    url: str, owner: psycopg.Connection[Any], relay: Relay, events: Events, kafka_settings: KafkaSettings
) -> None:
    """Claim in order, skip locked rows, set aside by row version, mark, publish, audit, preview, backlog."""
    upgrade(url)
    first = make_tickets(owner, 20, **FIRST_RESPONSE_OVERDUE)
    late = make_tickets(owner, 20, **RESOLUTION_OVERDUE)
    bad = make_ticket(owner, **FIRST_RESPONSE_OVERDUE | {"queue_id": None})
    make_tickets(owner, 200)
    settings = PostgresSettings(url)
    with settings.session(purpose="test") as session:
        assert claim(session, now_utc=NOW, tenant_id=None, limit=500)[: len(late)] == late
        assert count_backlog(session, now_utc=NOW) == 41
        assert preview(session, now_utc=NOW, tenant_id=None, oldest=3).total == 41
    database, clock = Database(settings), SimulatedClock(NOW)
    with psycopg.connect(url) as operator:
        held = operator.execute("select id::text from support.tickets where id = %s for update", (first[7],)).fetchone()
        report = run_cycle(database, relay, clock=clock)
        assert (report.processed_count, report.lock_skip_count) == (39, 1)
        assert (report.published_count, report.backlog_count) == (39, 2)
        assert len(report.errors) == 1
    assert held is not None
    # a row set aside is tried at once when its version has changed
    owner.execute("update support.tickets set queue_id = gen_random_uuid() where id = %s", (bad,))
    report = run_cycle(database, relay, clock=clock)
    assert (report.processed_count, report.errors, report.backlog_count) == (2, [], 0)
    database.close()
    assert breached_ids(owner) == {*first, *late, bad} == {event.ticket_id for event in events()}
    assert look(owner, first[0])["updated_at"] == NOW
    audited = verify(settings, kafka_settings, now_utc=NOW)
    assert (audited.clean, audited.proven_count, audited.event_count) == (True, 41, 41)


def test_claim_and_lock_read_the_partitions_indexes(url: str, owner: psycopg.Connection[Any]) -> None:
    upgrade(url)
    overdue = make_tickets(owner, 3_000, **FIRST_RESPONSE_OVERDUE)
    make_tickets(owner, 20_000)
    owner.execute("vacuum analyze support.tickets")
    read = """
        select regexp_replace(relname, '_[0-9]+$', '') as index,
            sum(pg_stat_get_xact_tuples_returned(pg_class.oid))::int
        from pg_index join pg_class on pg_class.oid = indexrelid
        where indrelid in (select relid from pg_partition_tree('support.tickets'))
            and pg_stat_get_xact_tuples_returned(pg_class.oid) > 0
        group by 1
    """
    settings = PostgresSettings(url)
    with settings.session(purpose="test") as session, session.transaction():
        assert claim(session, now_utc=NOW, tenant_id=None, limit=100) == overdue[:100]
        ((index, count),) = session.execute(read).fetchall()
        assert index == _FIRST.name
        # a merge reads one row ahead in each partition
        assert 100 <= count <= 100 + _LEAF_COUNT
    with settings.session(purpose="test") as session, session.transaction():
        assert len(lock_batch(session, overdue[-500:], now_utc=NOW, tenant_id=None)) == 500
        counts = dict(session.execute(read).fetchall())
        assert set(counts) == {"tickets_0_pkey", "tickets_1_pkey", "old_low_pkey", "old_high_pkey"}
        assert sum(counts.values()) == 500
