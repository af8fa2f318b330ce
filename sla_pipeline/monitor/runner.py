"""A cycle without Dagster: for cron, an emergency, a replay, and tests.

What belongs here: the four steps in their order. What does not: the steps.
"""

from uuid import uuid4

from sla_pipeline.cycle import Clock, CycleInput, OnStep, SystemClock, no_step
from sla_pipeline.kafka.relay import Relay
from sla_pipeline.monitor import steps

__all__ = ["run_cycle"]


def run_cycle(
    database: steps.Database,
    relay: Relay,
    given: CycleInput | None = None,
    *,
    clock: Clock | None = None,
    run_id: str | None = None,
    should_stop: steps.ShouldStop = lambda: False,
    on_step: OnStep = no_step,
) -> steps.CycleReport:
    """Run one cycle and report it. What failed inside it is in ``report.errors``; ``report.raise_if_failed()`` raises it.

    Raises as ``steps.claim_overdue`` and ``steps.mark_breached`` do, and ``CycleStopped`` when ``should_stop`` said so.
    The sessions stay open for the next cycle; their owner closes them.
    """
    clock = clock or SystemClock()
    claim = steps.claim_overdue(database, clock, given or CycleInput(), run_id=run_id or str(uuid4()), on_step=on_step)
    marked = steps.mark_breached(database, claim, should_stop=should_stop, on_step=on_step)
    return steps.close_cycle(database, clock, steps.publish_breaches(database, lambda: relay, marked))
