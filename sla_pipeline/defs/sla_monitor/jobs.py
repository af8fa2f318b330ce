"""The job ``ticket_sla_monitor``: one cycle."""

import dagster as dg

from sla_pipeline.defs.sla_monitor.assets import sla_breaches

__all__ = ["ticket_sla_monitor"]

ticket_sla_monitor = dg.define_asset_job(
    "ticket_sla_monitor",
    description="One cycle: find the tickets whose deadline has passed, mark each once, publish each once.",
    # the cycle records the checks itself: as steps of their own they would count a second time every minute
    selection=dg.AssetSelection.assets(sla_breaches).without_checks(),
)
