"""Asset checks of ``sla_breaches``: each is recorded by every cycle, and can be run alone."""

import contextlib
from collections.abc import Iterator

import dagster as dg

from sla_pipeline.alerting.rules import BACKLOG, RuleState, evaluate
from sla_pipeline.cycle import LISTED_COUNT, SystemClock
from sla_pipeline.defs.resources import PostgresResource
from sla_pipeline.errors import SlaPipelineError
from sla_pipeline.health import Health
from sla_pipeline.postgres import set_aside, tickets
from sla_pipeline.postgres.health import read_health
from sla_pipeline.quoting import in_markdown
from sla_pipeline.set_aside import SetAside

__all__ = ["ASSET_KEY", "backlog_evaluation", "backlog_size", "set_aside_evaluation", "tickets_set_aside"]

ASSET_KEY = dg.AssetKey("sla_breaches")
_BACKLOG_SIZE = "backlog_size"
_TICKETS_SET_ASIDE = "tickets_set_aside"


def backlog_evaluation(backlog: int, health: Health | None, *, has_more: bool = False) -> dg.AssetCheckEvaluation:
    """Return the result of check ``backlog_size``.

    ERROR while the rule fires: above its threshold for its whole period, and still above it. WARN where a cycle that
    reached its ceiling (``has_more``) leaves more than the cycle before it, and above the threshold while the history
    cannot be read (``health`` is None).
    """
    limit = BACKLOG.threshold
    state = evaluate([BACKLOG], health)[0] if health else None
    counts = [cycle.totals.backlog_count for cycle in health.cycles] if health else []
    # the newest of them is this cycle's
    before = [count for count in counts if count is not None][-2:-1]
    description = f"{backlog} tickets are overdue and not marked"
    passed, severity = True, dg.AssetCheckSeverity.WARN
    if state and state.state is RuleState.FIRING and backlog > limit:
        passed, severity = False, dg.AssetCheckSeverity.ERROR
        description += f", more than {limit:g} since {state.since:%H:%M} UTC; see {BACKLOG.runbook}"
    elif has_more and before and backlog > before[0]:
        passed = False
        description += ", more than after the cycle before: cycles reach their ceiling and the backlog grows"
    elif state is None and backlog > limit:
        passed = False
        description += f", more than {limit:g}; the cycles before cannot be read"
    else:
        description += f"; more than {limit:g} for {BACKLOG.for_seconds / 60:g} minutes is too many"
    return dg.AssetCheckEvaluation(
        asset_key=ASSET_KEY,
        check_name=_BACKLOG_SIZE,
        passed=passed,
        severity=severity,
        description=description,
        metadata={"backlog": backlog, "limit": int(limit)},
    )


def set_aside_evaluation(found: SetAside) -> dg.AssetCheckEvaluation:
    """Return the result of check ``tickets_set_aside``: after the cycle in which a ticket fails, the only alarm."""
    metadata: dict[str, dg.MetadataValue] = {"set_aside": dg.MetadataValue.int(found.count)}
    if found.count:
        metadata["tickets"] = dg.MetadataValue.md(_markdown_table(found))
    return dg.AssetCheckEvaluation(
        asset_key=ASSET_KEY,
        check_name=_TICKETS_SET_ASIDE,
        passed=not found.count,
        severity=dg.AssetCheckSeverity.ERROR,
        description=found.summary if found.count else "no overdue ticket is set aside",
        metadata=metadata,
    )


def _markdown_table(found: SetAside) -> str:
    lines = [
        "| number | ticket id | kind | set aside since (UTC) | reason | next try (UTC) |",
        "| --- | --- | --- | --- | --- | --- |",
        *(
            f"| {in_markdown(ticket.number)} | {ticket.ticket_id} | {in_markdown(ticket.kind)} | {ticket.since} "
            f"| {in_markdown(ticket.reason)} | {ticket.next_try} |"
            for ticket in found.cells()
        ),
    ]
    if found.unlisted:
        lines.append(f"\n{found.unlisted}")
    return "\n".join(lines)


@dg.asset_check(
    asset=ASSET_KEY,
    name=_BACKLOG_SIZE,
    description=(
        f"No more than {BACKLOG.threshold:g} tickets have been overdue and not marked for {BACKLOG.for_seconds / 60:g} "
        "minutes (SPEC 9.5). Every cycle records it; run it alone to count now."
    ),
)
def backlog_size(postgres: dg.ResourceParam[PostgresResource]) -> dg.AssetCheckResult:
    """Count the backlog now."""
    with _failing_as_a_cycle(), postgres.database().session() as connection:
        backlog = tickets.count_backlog(connection, now_utc=SystemClock().now_utc())
        health = read_health(connection)
    return _result(backlog_evaluation(backlog, health))


@dg.asset_check(
    asset=ASSET_KEY,
    name=_TICKETS_SET_ASIDE,
    description=(
        "No overdue ticket is set aside because it cannot be marked: nobody is called for such a ticket. Every cycle "
        "records it; run it alone to look now."
    ),
)
def tickets_set_aside(postgres: dg.ResourceParam[PostgresResource]) -> dg.AssetCheckResult:
    """Read the tickets set aside now; those that have changed since they failed are left to the next cycle."""
    with _failing_as_a_cycle(), postgres.database().session() as connection:
        found = set_aside.still_set_aside(connection, now_utc=SystemClock().now_utc(), limit=LISTED_COUNT)
    return _result(set_aside_evaluation(found))


@contextlib.contextmanager
def _failing_as_a_cycle() -> Iterator[None]:
    """Fail a check that runs alone with the message that a cycle has for the same fault."""
    try:
        yield
    except SlaPipelineError as error:
        raise dg.Failure(description=str(error), allow_retries=False) from None


def _result(evaluation: dg.AssetCheckEvaluation) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        passed=evaluation.passed,
        severity=evaluation.severity,
        description=evaluation.description,
        metadata=evaluation.metadata,
    )
