"""Expand, then contract: this version's worker on a database that a later version has migrated.

A later version is a copy of the revisions with more of them behind, since this package cannot hold its successor.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sla_pipeline.audit.verify import verify
from sla_pipeline.errors import PostgresSetupError
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.postgres import migrate, migrations, schema
from sla_pipeline.postgres.migrate import upgrade
from sla_pipeline.postgres.schema import REVISION
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline_tests.integration.conftest import Cycle, Events
from sla_pipeline_tests.integration.postgres.conftest import NewDatabase, NewLogin
from sla_pipeline_tests.integration.postgres.test_migrations import _dump as dump
from sla_pipeline_tests.tickets import FIRST_RESPONSE_OVERDUE, NOW, breached_ids, make_ticket

Support = psycopg.Connection[Any]
AddRevision = Callable[..., None]

_REVISION_FILE = """
from alembic import op
from sla_pipeline.postgres.migrations.additive import add_missing

revision = {name!r}
down_revision = {before!r}
branch_labels = None
depends_on = None
compatible_from = {compatible_from!r}
drops = {drops!r}


def upgrade():
    {upgrade}
"""
_EXPAND = (
    'add_missing("support.ticket_sla_breaches", {"team": "text"}); '
    'add_missing("support.ticket_sla_cycles", {"retry_count": "integer not null default 0"})'
)
_CONTRACT = (
    'op.execute("alter table support.ticket_sla_set_aside drop column if exists error"); '
    'op.execute("alter table support.ticket_sla_cycles drop constraint if exists ticket_sla_cycles_state_check"); '
    'op.execute("drop index if exists support.ticket_sla_cycles_started"); '
    'op.execute("drop index if exists support.ticket_sla_resolution_overdue")'
)
_DROPS = (
    "support.ticket_sla_set_aside.error",
    "support.ticket_sla_cycles.ticket_sla_cycles_state_check",
    "support.ticket_sla_cycles_started",
    "support.ticket_sla_resolution_overdue",
)


@pytest.fixture
def add_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AddRevision:
    """Adds a revision of a later version behind the newest; `migrate` runs it from then on."""
    scripts = tmp_path / "migrations"
    shutil.copytree(Path(migrations.__file__).parent, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(migrate, "_SCRIPTS", scripts)
    schema._log_newer.cache_clear()
    newest = REVISION

    def add(name: str, *, compatible_from: str, upgrade: str = "pass", drops: tuple[str, ...] = ()) -> None:
        nonlocal newest
        text = _REVISION_FILE.format(
            name=name, before=newest, compatible_from=compatible_from, upgrade=upgrade, drops=drops
        )
        (scripts / "versions" / f"{name}_later.py").write_text(text)
        newest = name

    return add


def _recorded(support: Support) -> list[tuple[Any, ...]]:
    return support.execute(
        "select version_num, compatible_from from support.ticket_sla_schema_version where version_num like 'sla%'"
    ).fetchall()


def _refusal(cycle: Cycle) -> str:
    with pytest.raises(PostgresSetupError) as raised:
        cycle()
    return str(raised.value)


def test_a_worker_works_on_a_newer_database_that_is_compatible_with_it(
    add_revision: AddRevision,
    owner_url: str,
    support: Support,
    cycle: Cycle,
    events: Events,
    logged: list[Any],
    new_login: NewLogin,
    kafka_settings: KafkaSettings,
) -> None:
    """From the moment of the migration to its rollout: it marks, publishes and is audited."""
    add_revision("sla_9999", compatible_from=REVISION, upgrade=_EXPAND)
    upgrade(owner_url)
    assert _recorded(support) == [("sla_9999", REVISION)]
    tickets = []
    for _ in range(2):
        tickets.append(make_ticket(support, **FIRST_RESPONSE_OVERDUE))
        report = cycle()
        assert (report.errors, report.processed_count, report.published_count) == ([], 1, 1)
    assert breached_ids(support) == set(tickets)
    assert [event.ticket_id for event in events()] == tickets
    assert verify(PostgresSettings(new_login("sla_analyst")), kafka_settings, now_utc=NOW).clean
    newer = [record for record in logged if record.getMessage().startswith("database is newer than this version")]
    assert [(record.levelname, record.revision, record.knownRevision) for record in newer] == [
        ("INFO", "sla_9999", REVISION)
    ]


@pytest.mark.parametrize(
    "undeclared",
    [
        "select 1",
        "update support.ticket_sla_schema_version set compatible_from = null",
        "alter table support.ticket_sla_schema_version drop column compatible_from",
    ],
    ids=["incompatible", "not declared", "no column"],
)
def test_a_worker_refuses_a_newer_database_that_is_not_declared_compatible(
    undeclared: str, add_revision: AddRevision, owner_url: str, support: Support, cycle: Cycle
) -> None:
    add_revision("sla_9998", compatible_from=REVISION)
    add_revision("sla_9999", compatible_from="sla_9998")
    upgrade(owner_url)
    support.execute(undeclared.encode())
    make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    assert _refusal(cycle).endswith(
        f" is at revision sla_9999, newer than {REVISION} that this version knows; deploy the newer sla-pipeline"
    )
    assert breached_ids(support) == set()


def test_a_worker_is_not_rolled_out_before_the_database_is_migrated(
    support: Support, cycle: Cycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "REVISION", "sla_9999")
    assert _refusal(cycle).endswith(
        f" is at revision {REVISION}, this version needs sla_9999; run `sla-pipeline migrate`"
    )


def test_a_database_that_was_migrated_before_there_were_declarations(
    add_revision: AddRevision, owner_url: str, support: Support, cycle: Cycle
) -> None:
    """Its workers go on; the next migration writes the declaration."""
    support.execute("alter table support.ticket_sla_schema_version drop column compatible_from")
    make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    assert cycle().processed_count == 1
    add_revision("sla_9999", compatible_from=REVISION)
    upgrade(owner_url)
    assert _recorded(support) == [("sla_9999", REVISION)]
    make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    assert cycle().processed_count == 1


def test_a_migration_that_stops_half_way_leaves_a_revision_with_its_own_declaration(
    add_revision: AddRevision, owner_url: str, support: Support, cycle: Cycle
) -> None:
    add_revision("sla_9998", compatible_from=REVISION, upgrade=_EXPAND)
    add_revision("sla_9999", compatible_from="sla_9998", upgrade='op.execute("select 1 from support.missing")')
    with pytest.raises(PostgresSetupError, match=r'relation "support\.missing" does not exist'):
        upgrade(owner_url)
    assert _recorded(support) == [("sla_9998", REVISION)]
    make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    assert cycle().processed_count == 1


def test_what_a_later_revision_drops_is_never_added_again(
    add_revision: AddRevision, owner_url: str, support: Support, new_database: NewDatabase
) -> None:
    """By `migrate` run again, and where the version is lost; a new installation is what an old one becomes."""
    # a column without a default could not be added to this row
    support.execute(
        "insert into support.ticket_sla_set_aside (ticket_id, number, kind, error, first_failed_at, last_failed_at, "
        "next_try_at) values (gen_random_uuid(), 'TCK-1', 'Resolution', 'bad', now(), now(), now())"
    )
    add_revision("sla_9998", compatible_from=REVISION, upgrade=_EXPAND)
    add_revision("sla_9999", compatible_from="sla_9998", upgrade=_CONTRACT, drops=_DROPS)
    upgrade(owner_url, with_tickets=True)
    made = dump(owner_url)
    names = {value for row in made for value in row}
    assert "retry_count" in names
    assert not names & {"ticket_sla_cycles_state_check", "ticket_sla_cycles_started", "ticket_sla_resolution_overdue"}
    assert ("ticket_sla_set_aside", "error") not in {row[:2] for row in made}
    upgrade(owner_url, with_tickets=True)
    assert dump(owner_url) == made
    support.execute("delete from support.ticket_sla_schema_version where version_num like 'sla%'")
    upgrade(owner_url)
    assert dump(owner_url) == made
    assert _recorded(support) == [("sla_9999", "sla_9998")]
    # each column added again and dropped again would use up one of the table's 1600
    assert support.execute(
        "select count(*) from pg_attribute where attrelid = 'support.ticket_sla_set_aside'::regclass and attisdropped"
    ).fetchone() == (1,)
    new = new_database()
    upgrade(new, with_tickets=True)
    assert dump(new) == made
