"""What a person may type into the launchpad (SPEC 3.2, 4.2, 4.3)."""

from typing import Any

import dagster as dg
import psycopg
import pytest

from sla_pipeline.errors import InputError
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline_tests.integration.dagster.conftest import launchpad
from sla_pipeline_tests.tickets import make_ticket, row_versions

Support = psycopg.Connection[Any]


@pytest.fixture
def kafka_settings() -> KafkaSettings:
    """A Kafka that is not there: a refused run does not even look for it."""
    return KafkaSettings("127.0.0.1:1", topic="untouched")


def _untouched(support: Support) -> tuple[Any, ...]:
    """What a refused run must leave as it is."""
    return (
        row_versions(support),
        support.execute("select count(*) from support.ticket_sla_cycles").fetchone(),
        support.execute("select xmin, next_seq from support.ticket_sla_relay").fetchone(),
    )


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        *(("batch_size", value, "from 1 to 1000 (default 500)") for value in (0, -1, 1001, None)),
        *(("max_batches_per_cycle", value, "from 1 to 200 (default 20)") for value in (0, 201, None)),
    ],
)
def test_batch_size_out_of_range(
    field: str, value: int | None, allowed: str, support: Support, job: dg.JobDefinition, ephemeral: dg.DagsterInstance
) -> None:
    make_ticket(support, first_response_due_at="2026-01-01T00:00:00Z")
    before = _untouched(support)
    with pytest.raises(InputError) as raised:
        job.execute_in_process(instance=ephemeral, run_config=launchpad(**{field: value}))
    assert str(raised.value) == f"{field} is {value!r}; it must be a whole number {allowed}"
    (run,) = ephemeral.get_runs()
    assert run.status is dg.DagsterRunStatus.FAILURE
    assert _untouched(support) == before


@pytest.mark.parametrize("field", ["batch_size", "max_batches_per_cycle"])
@pytest.mark.parametrize("value", ["many", 2.5, True])
def test_batch_size_of_another_type_is_refused_before_there_is_a_run(
    field: str, value: object, support: Support, job: dg.JobDefinition, ephemeral: dg.DagsterInstance
) -> None:
    before = _untouched(support)
    with pytest.raises(dg.DagsterInvalidConfigError) as raised:
        job.execute_in_process(instance=ephemeral, run_config=launchpad(**{field: value}))
    assert f"root:ops:ticket_sla_cycle:ops:claim_overdue:config:{field}" in str(raised.value)
    assert str(value) in str(raised.value)
    assert list(ephemeral.get_runs()) == []
    assert _untouched(support) == before


@pytest.mark.parametrize("field", ["batchsize", "now_utc"])
def test_an_unknown_field_is_refused(field: str, job: dg.JobDefinition, ephemeral: dg.DagsterInstance) -> None:
    """Above all, nobody may say what time it is (SPEC 4.1)."""
    with pytest.raises(dg.DagsterInvalidConfigError, match=f'Received unexpected config entry "{field}"'):
        job.execute_in_process(instance=ephemeral, run_config=launchpad(**{field: 500}))


def test_a_tenant_that_is_no_uuid_is_refused(support: Support, job: dg.JobDefinition, ephemeral: dg.DagsterInstance) -> None:
    before = _untouched(support)
    with pytest.raises(InputError, match="tenant_id is 'mine'; it must be a UUID, or be left out for all tenants"):
        job.execute_in_process(instance=ephemeral, run_config=launchpad(tenant_id="mine"))
    assert _untouched(support) == before
