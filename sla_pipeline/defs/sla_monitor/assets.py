"""The asset ``sla_breaches``: every materialization is one cycle."""

import datetime as dt

import dagster as dg

from sla_pipeline.defs.sla_monitor import ops

__all__ = ["sla_breaches"]

# "no successful cycle for more than 5 minutes" (SPEC 9.5)
_FAIL_AFTER = dt.timedelta(minutes=5)
_WARN_AFTER = dt.timedelta(minutes=3)


def _with_freshness(asset: dg.AssetsDefinition) -> dg.AssetsDefinition:
    """Set the policy on the spec: ``graph_asset`` takes none."""
    policy = dg.FreshnessPolicy.time_window(fail_window=_FAIL_AFTER, warn_window=_WARN_AFTER)
    return asset.map_asset_specs(lambda spec: dg.apply_freshness_policy(spec, policy))


@_with_freshness
@dg.graph_asset(
    name="sla_breaches",
    group_name="sla_monitor",
    description=(
        "Tickets whose deadline has passed, each marked once in support.tickets and published once to Kafka. "
        "Every materialization is one cycle."
    ),
    config=ops.launchpad_config,
    kinds={"postgres", "kafka"},
    owners=["team:pin-platform-care"],
)
def sla_breaches() -> object:
    """Claim, mark, publish, close."""
    return ops.close_cycle(ops.publish_breaches(ops.mark_breached(ops.claim_overdue())))
