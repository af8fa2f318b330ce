"""The four ops of a cycle, and what Dagster is told of it.

What belongs here: config at the door, metadata, the check's record, which run fails. What does not: the work
(``steps.py``).

The ops run in one process and hand values over in memory. Termination raises a ``BaseException`` inside whatever runs;
nothing here catches it, so the open batch rolls back and the run ends CANCELED.
"""

from collections.abc import Iterator
from typing import Any

import dagster as dg
from pydantic import Field, ValidationInfo, field_validator

from sla_pipeline.cycle import BATCH_SIZE, MAX_BATCHES_PER_CYCLE, CycleInput, SystemClock
from sla_pipeline.errors import CycleLocked, InputError, SlaPipelineError
from sla_pipeline.monitor import steps
from sla_pipeline.monitor.resources import RE_EXECUTE_ALL, KafkaResource, PostgresResource
from sla_pipeline.postgres.set_aside import REASON_LENGTH, SetAside
from sla_pipeline.quoting import in_markdown, named, quoted

__all__ = [
    "BACKLOG_CHECK",
    "CYCLE_POOL",
    "SET_ASIDE_CHECK",
    "CycleConfig",
    "backlog_evaluation",
    "claim_overdue",
    "close_cycle",
    "launchpad_config",
    "mark_breached",
    "publish_breaches",
    "set_aside_evaluation",
]

BACKLOG_CHECK = dg.AssetCheckKey(dg.AssetKey("sla_breaches"), "backlog_size")
SET_ASIDE_CHECK = dg.AssetCheckKey(BACKLOG_CHECK.asset_key, "tickets_set_aside")
# dagster.yaml lets one run at a time use the pool. Every op is in it, since a re-execution may select any of them.
CYCLE_POOL = "ticket_sla_cycle"
# Bounds a run page's message; the journal holds more of them.
_ERRORS_SHOWN = 20


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
        """Raises ``DagsterInvalidConfigError``: passed on unwrapped, its message is the dialog's: field, value and
        range.
        """
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
) -> steps.Claim:
    """SPEC 5.1 to 5.3.

    Fails the run when the single-runner lock keeps the cycle out: no success, no materialization.
    """
    try:
        given = CycleInput(config.batch_size, config.max_batches_per_cycle, config.tenant_id)
        # refused before anything is marked
        kafka.relay()
        return steps.claim_overdue(postgres.database(), SystemClock(), given, run_id=context.run_id)
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
def mark_breached(postgres: dg.ResourceParam[PostgresResource], claimed: steps.Claim) -> steps.Marked:
    """SPEC 5.4 to 5.6."""
    return steps.mark_breached(postgres.database(), claimed)


@dg.op(
    description="Publish every breach record that waits, each exactly once, those of earlier cycles first.",
    tags={"sla/step": "publish"},
    pool=CYCLE_POOL,
    out=dg.Out(io_manager_key="cycle_values"),
)
def publish_breaches(
    postgres: dg.ResourceParam[PostgresResource], kafka: dg.ResourceParam[KafkaResource], marked: steps.Marked
) -> steps.Published:
    """SPEC 5.6, 7.2."""
    return steps.publish_breaches(postgres.database(), kafka.relay, marked)


@dg.op(
    description="Count the backlog, write the journal, and fail the run if anything in it failed.",
    tags={"sla/step": "close"},
    pool=CYCLE_POOL,
    out=dg.Out(dg.Nothing),
)
def close_cycle(
    context: dg.OpExecutionContext, postgres: dg.ResourceParam[PostgresResource], published: steps.Published
) -> Iterator[dg.AssetCheckEvaluation | dg.Output[None]]:
    """SPEC 5.7, 9.

    Raises ``dagster.Failure``, after all else is recorded, if a row, a batch or the publishing failed.
    """
    report = steps.close_cycle(postgres.database(), SystemClock(), published)
    metadata = cycle_metadata(report)
    context.log.info(
        "marked %d in %d batches, published %d, backlog %s, %d errors, %.0f ms",
        report.processed,
        report.batches,
        report.published,
        report.backlog,
        report.error_count,
        report.duration_ms,
    )
    if report.unknown_priority_count:
        context.log.warning(
            "%d tickets went out with a priority that we do not know: %s",
            report.unknown_priority_count,
            ", ".join(map(quoted, report.unknown_priorities)),
        )
    if report.backlog is not None:
        # an AssetCheckResult would fail the step; this event is stored under the check's key. Yielded, because what is
        # logged by `context.log_event` is lost when the op raises
        yield backlog_evaluation(report.backlog)
    if report.set_aside is not None:
        yield set_aside_evaluation(report.set_aside)
    if report.errors:
        shown = [*report.listed_errors(_ERRORS_SHOWN), RE_EXECUTE_ALL]
        raise dg.Failure(description="\n".join(shown), metadata=metadata, allow_retries=False)
    yield dg.Output(None, metadata=metadata)


def backlog_evaluation(backlog: int) -> dg.AssetCheckEvaluation:
    """The check ``backlog_size`` as an event of the cycle itself."""
    return dg.AssetCheckEvaluation(
        asset_key=BACKLOG_CHECK.asset_key,
        check_name=BACKLOG_CHECK.name,
        passed=backlog <= steps.BACKLOG_LIMIT,
        severity=dg.AssetCheckSeverity.ERROR,
        description=f"{backlog} tickets are overdue and not marked; more than {steps.BACKLOG_LIMIT} is too many",
        metadata={"backlog": backlog, "limit": steps.BACKLOG_LIMIT},
    )


def set_aside_evaluation(found: SetAside) -> dg.AssetCheckEvaluation:
    """The check ``tickets_set_aside`` as an event of the cycle itself: only the cycle in which a ticket fails is
    failed for it.
    """
    metadata: dict[str, dg.MetadataValue] = {"set_aside": dg.MetadataValue.int(found.count)}
    if found.count:
        metadata["tickets"] = dg.MetadataValue.md(_set_aside_table(found))
    return dg.AssetCheckEvaluation(
        asset_key=SET_ASIDE_CHECK.asset_key,
        check_name=SET_ASIDE_CHECK.name,
        passed=not found.count,
        severity=dg.AssetCheckSeverity.ERROR,
        description=(
            f"{found.count} overdue tickets cannot be marked, and nobody is called for them; correct the row or what "
            "refuses it: a row that has changed is tried by the next cycle, another one at its next try"
            if found.count
            else "no overdue ticket is set aside"
        ),
        metadata=metadata,
    )


def _set_aside_table(found: SetAside) -> str:
    lines = [
        "| number | ticket id | kind | set aside since (UTC) | reason | next try (UTC) |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {in_markdown(named(ticket.number))} | {ticket.id} | {in_markdown(named(ticket.kind))} "
        f"| {ticket.first_failed_at:%Y-%m-%d %H:%M:%S} | {in_markdown(named(ticket.error, length=REASON_LENGTH))} "
        f"| {ticket.next_try_at:%Y-%m-%d %H:%M:%S} |"
        for ticket in found.tickets
    ]
    if found.count > len(found.tickets):
        lines.append(f"\nand {found.count - len(found.tickets)} more in support.ticket_sla_set_aside")
    return "\n".join(lines)


def cycle_metadata(report: steps.CycleReport) -> dict[str, dg.MetadataValue]:
    """What is shown and plotted of a cycle.

    Durations in milliseconds, counts of tickets unless the name says otherwise.
    """
    numbers = {
        "processed": report.processed,
        **{f"processed_{kind.value}": count for kind, count in report.by_kind.items()},
        "batches": report.batches,
        "published": report.published,
        "lock_skips": report.lock_skips,
        "remarked": report.remarked,
        "unknown_priorities": report.unknown_priority_count,
        "errors": report.error_count,
    }
    durations = {
        "claim_ms": report.claim_ms,
        "mark_ms": report.mark_ms,
        "publish_ms": report.publish_ms,
        "duration_ms": report.duration_ms,
    }
    metadata: dict[str, dg.MetadataValue] = {
        **{name: dg.MetadataValue.int(number) for name, number in numbers.items()},
        **{name: dg.MetadataValue.float(duration) for name, duration in durations.items()},
        "has_more": dg.MetadataValue.bool(report.has_more),
        "now_utc": dg.MetadataValue.timestamp(report.now_utc),
    }
    if report.backlog is not None:
        metadata["backlog"] = dg.MetadataValue.int(report.backlog)
    if report.set_aside is not None:
        metadata["set_aside"] = dg.MetadataValue.int(report.set_aside.count)
    return metadata
