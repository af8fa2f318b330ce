"""Values that a person may type into the launchpad (SPEC 3.2, 4.2, 4.3)."""

from typing import Any

import dagster as dg
import psycopg
import pytest

from sla_pipeline.cycle import BATCH_SIZE, MAX_BATCHES_PER_CYCLE
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline_tests.integration.dagster.conftest import launchpad
from sla_pipeline_tests.tickets import make_ticket, row_versions

Support = psycopg.Connection[Any]


@pytest.fixture
def kafka_settings() -> KafkaSettings:
    """An address where no Kafka listens: a refused run does not connect."""
    return KafkaSettings("127.0.0.1:1", topic="untouched")


def _untouched(support: Support) -> tuple[Any, ...]:
    """Return the state that a refused run must not change."""
    return (
        row_versions(support),
        support.execute("select count(*) from support.ticket_sla_cycles").fetchone(),
        support.execute("select xmin, last_seq from support.ticket_sla_relay").fetchone(),
    )


@pytest.mark.parametrize("value", [0, -1, 1001, None, "many", "500", 2.5, True, [], {}])
def test_batch_size_out_of_range(
    value: object, support: Support, job: dg.JobDefinition, ephemeral: dg.DagsterInstance
) -> None:
    _refused("batch_size", value, "from 1 to 1000 (default 500)", support, job, ephemeral)


@pytest.mark.parametrize("value", [0, 201, None, "many", 2.5, True])
def test_max_batches_per_cycle_out_of_range(
    value: object, support: Support, job: dg.JobDefinition, ephemeral: dg.DagsterInstance
) -> None:
    _refused("max_batches_per_cycle", value, "from 1 to 200 (default 20)", support, job, ephemeral)


def _refused(
    field: str, value: object, allowed: str, support: Support, job: dg.JobDefinition, ephemeral: dg.DagsterInstance
) -> None:
    """Assert that the value is refused with field, value and range, before there is a run."""
    make_ticket(support, first_response_due_at="2026-01-01T00:00:00Z")
    before = _untouched(support)
    with pytest.raises(dg.DagsterInvalidConfigError) as raised:
        job.execute_in_process(instance=ephemeral, run_config=launchpad(**{field: value}))
    assert str(raised.value) == f"{field} is {value!r}; it must be a whole number {allowed}"
    assert list(ephemeral.get_runs()) == []
    assert _untouched(support) == before


@pytest.mark.parametrize("field", ["batchsize", "now_utc"])
def test_an_unknown_field_is_refused(field: str, job: dg.JobDefinition, ephemeral: dg.DagsterInstance) -> None:
    """Above all, nobody may set the time (SPEC 4.1)."""
    with pytest.raises(dg.DagsterInvalidConfigError, match=f'Received unexpected config entry "{field}"'):
        job.execute_in_process(instance=ephemeral, run_config=launchpad(**{field: 500}))


def test_a_tenant_that_is_no_uuid_is_refused(
    support: Support, job: dg.JobDefinition, ephemeral: dg.DagsterInstance
) -> None:
    before = _untouched(support)
    with pytest.raises(dg.DagsterInvalidConfigError) as raised:
        job.execute_in_process(instance=ephemeral, run_config=launchpad(tenant_id="mine"))
    assert str(raised.value) == "tenant_id is 'mine'; it must be a UUID, or be left out for all tenants"
    assert _untouched(support) == before


def test_a_field_prints_its_range(job: dg.JobDefinition) -> None:
    asset = job.graph.node_named("sla_breaches").definition
    assert isinstance(asset, dg.GraphDefinition)
    assert asset.config_mapping is not None
    fields = asset.config_mapping.config_schema.config_type.fields  # type: ignore[union-attr]
    assert f"{BATCH_SIZE.low} to {BATCH_SIZE.high}" in fields["batch_size"].description
    assert f"{MAX_BATCHES_PER_CYCLE.low} to {MAX_BATCHES_PER_CYCLE.high}" in fields["max_batches_per_cycle"].description
    assert "a UUID" in fields["tenant_id"].description
    assert {name: field.default_value for name, field in fields.items()} == {
        "batch_size": BATCH_SIZE.default,
        "max_batches_per_cycle": MAX_BATCHES_PER_CYCLE.default,
        "tenant_id": None,
    }
