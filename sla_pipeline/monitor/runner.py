"""A cycle without Dagster: for cron, an emergency, a replay, and tests."""

from uuid import uuid4

from sla_pipeline.cycle import Clock, CycleInput, CycleTotals, OnStep, SystemClock, no_step
from sla_pipeline.kafka.relay import Relay
from sla_pipeline.monitor import steps
from sla_pipeline.monitor.batches import ShouldStop
from sla_pipeline.postgres.database import Database

__all__ = ["run_cycle"]


def run_cycle(
    database: Database,
    relay: Relay,
    cycle_input: CycleInput | None = None,
    *,
    clock: Clock | None = None,
    run_id: str | None = None,
    should_stop: ShouldStop = lambda: False,
    on_step: OnStep = no_step,
) -> CycleTotals:
    """Run one cycle and return its totals. Their ``errors`` hold what failed; ``raise_if_failed()`` raises it.

    Raises as ``steps.claim_overdue`` and ``steps.mark_breached`` do. The sessions stay open for the next cycle; their
    owner closes them.
    """
    clock = clock or SystemClock()
    claim = steps.claim_overdue(
        database, clock, cycle_input or CycleInput(), run_id=run_id or str(uuid4()), on_step=on_step
    )
    steps.mark_breached(database, claim, should_stop=should_stop, on_step=on_step)
    steps.publish_breaches(database, lambda: relay, claim)
    return steps.close_cycle(database, clock, claim)
