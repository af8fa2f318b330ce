"""The four ops of a cycle: thin wiring around ``monitor/steps.py``.

The ops run in one process and pass one ``Claim`` on in memory. Termination raises a ``BaseException`` inside the code
that runs; nothing here catches it, so the open batch rolls back and the run ends CANCELED.
"""

import logging
from collections.abc import Iterator
from typing import Any

import dagster as dg
from pydantic import Field, ValidationInfo, field_validator

from sla_pipeline.cycle import BATCH_SIZE, LISTED_COUNT, MAX_BATCHES_PER_CYCLE, Claim, CycleInput, SystemClock
from sla_pipeline.defs.resources import RE_EXECUTE_ALL, KafkaResource, PostgresResource
from sla_pipeline.defs.sla_monitor.checks import backlog_evaluation, set_aside_evaluation
from sla_pipeline.errors import CycleLocked, InputError, SlaPipelineError
from sla_pipeline.health import Health
from sla_pipeline.monitor import steps
from sla_pipeline.postgres.health import read_health
from sla_pipeline.quoting import quoted

__all__ = [
    "CYCLE_POOL",
    "CycleConfig",
    "claim_overdue",
    "close_cycle",
    "launchpad_config",
    "mark_breached",
    "publish_breaches",
]

log = logging.getLogger(__name__)

# dagster.yaml lets one run at a time use the pool. Every op is in it, since a re-execution may select any of them.
CYCLE_POOL = "ticket_sla_cycle"


class CycleConfig(dg.Config):
    """Fields of the launchpad (SPEC 4).

    Untyped for Dagster, so that ``CycleInput`` alone validates them: Dagster's error for a wrong type names no range.
    """

    batch_size: Any = Field(
        default=BATCH_SIZE.default,
        description=f"Tickets marked in one transaction, {BATCH_SIZE.low} to {BATCH_SIZE.high}.",
    )
    max_batches_per_cycle: Any = Field(
        default=MAX_BATCHES_PER_CYCLE.default,
        description=f"Batches in one cycle, {MAX_BATCHES_PER_CYCLE.low} to {MAX_BATCHES_PER_CYCLE.high};"
        " what is overdue beyond them waits for the next cycle.",
    )
    tenant_id: Any = Field(
        default=None, description="Only this tenant's tickets, a UUID; left out for all. For diagnosis and manual runs."
    )

    @field_validator("*", mode="before")
    @classmethod
    def _usable(cls, value: object, info: ValidationInfo) -> object:
        """Raise ``DagsterInvalidConfigError`` for a bad value; the dialog shows its message: field, value, range."""
        try:
            CycleInput(**{str(info.field_name): value})  # type: ignore[arg-type]  # CycleInput checks the type
        except InputError as error:
            raise dg.DagsterInvalidConfigError(str(error), errors=[], config_value=value) from None  # type: ignore[no-untyped-call]
        return value


@dg.config_mapping
def launchpad_config(config: CycleConfig) -> dict[str, Any]:
    """Map the asset's config, ``ops.sla_breaches.config``, to its first op.

    A bad value is refused before there is a run.
    """
    return {"claim_overdue": {"config": dict(config)}}


@dg.op(
    description="Check clock and schema, then read once, in order, the tickets that are overdue.",
    tags={"sla/step": "claim"},
    pool=CYCLE_POOL,
    out=dg.Out(io_manager_key="cycle_values"),
)
def claim_overdue(
    context: dg.OpExecutionContext,
    config: CycleConfig,
    postgres: dg.ResourceParam[PostgresResource],
    kafka: dg.ResourceParam[KafkaResource],
) -> Claim:
    """SPEC 5.1 to 5.3. Fail the run when the single-runner lock keeps the cycle out: no success, no materialization."""
    try:
        cycle_input = CycleInput(config.batch_size, config.max_batches_per_cycle, config.tenant_id)
        # a wrong setting is refused before anything is marked
        kafka.relay()
        return steps.claim_overdue(postgres.database(), SystemClock(), cycle_input, run_id=context.run_id)
    # from None: Dagster stores the messages of an error's causes too, and a cause's can repeat a ticket's values
    except CycleLocked as locked:
        raise dg.Failure(description=f"skipped: {locked}", allow_retries=False) from None
    except SlaPipelineError as error:
        raise dg.Failure(description=f"{error}\n{RE_EXECUTE_ALL}", allow_retries=False) from None


@dg.op(
    description="Mark them batch by batch, flag and breach record in one transaction.",
    tags={"sla/step": "mark"},
    pool=CYCLE_POOL,
    out=dg.Out(io_manager_key="cycle_values"),
)
def mark_breached(postgres: dg.ResourceParam[PostgresResource], claimed: Claim) -> Claim:
    """SPEC 5.4 to 5.6."""
    steps.mark_breached(postgres.database(), claimed)
    return claimed


@dg.op(
    description="Publish every breach record that waits, each exactly once, those of earlier cycles first.",
    tags={"sla/step": "publish"},
    pool=CYCLE_POOL,
    out=dg.Out(io_manager_key="cycle_values"),
)
def publish_breaches(
    postgres: dg.ResourceParam[PostgresResource], kafka: dg.ResourceParam[KafkaResource], marked: Claim
) -> Claim:
    """SPEC 5.6, 7.2."""
    steps.publish_breaches(postgres.database(), kafka.relay, marked)
    return marked


@dg.op(
    description="Count the backlog, write the journal, and fail the run if anything in it failed.",
    tags={"sla/step": "close"},
    pool=CYCLE_POOL,
    out=dg.Out(dg.Nothing),
)
def close_cycle(
    context: dg.OpExecutionContext, postgres: dg.ResourceParam[PostgresResource], published: Claim
) -> Iterator[dg.AssetCheckEvaluation | dg.Output[None]]:
    """SPEC 5.7, 9. Raise ``dagster.Failure``, after all else is recorded, when anything in the cycle failed."""
    totals = steps.close_cycle(postgres.database(), SystemClock(), published)
    context.log.info(totals.as_line())
    if totals.unknown_priority_count:
        context.log.warning(
            "%d tickets have a priority that is not in our list, sent as it is: %s",
            totals.unknown_priority_count,
            ", ".join(map(quoted, totals.frequent_unknown_priorities())),
        )
    # an AssetCheckResult would fail the step; an evaluation is stored under the check's key. Yielded, because an event
    # of `context.log_event` is lost when the op raises
    if totals.backlog_count is not None:
        yield backlog_evaluation(totals.backlog_count, _health(postgres), has_more=totals.has_more)
    if totals.set_aside is not None:
        yield set_aside_evaluation(totals.set_aside)
    metadata = {**totals.as_metadata(), "now_utc": dg.MetadataValue.timestamp(published.now_utc)}
    if totals.errors:
        lines = [*totals.error_list.listed(LISTED_COUNT), RE_EXECUTE_ALL]
        raise dg.Failure(description="\n".join(lines), metadata=metadata, allow_retries=False)
    yield dg.Output(None, metadata=metadata)


def _health(postgres: PostgresResource) -> Health | None:
    """Return the history behind the check; None, and a log line, when it cannot be read: the cycle does not fail."""
    try:
        with postgres.database().session() as connection:
            return read_health(connection)
    except SlaPipelineError as error:
        log.warning("history of cycles cannot be read", extra={"check": "backlog_size", "error": str(error)})
        return None
