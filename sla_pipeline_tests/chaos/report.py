"""A run's outcome as JSON and as a table.

What belongs here: words and columns. What does not: deciding what is clean (``conductor.Outcome``).
"""

from rich.table import Table

from sla_pipeline.audit.findings import Severity
from sla_pipeline_tests.chaos.conductor import Outcome

__all__ = ["as_json", "as_table"]

_FAULTS = (
    "duplicates",
    "losses",
    "false_breaches",
    "missed",
    "order_inversions",
    "unrecorded",
    "altered",
    "strays",
    "sequence_gaps",
)
_BAD_WHEN_FULL = (*_FAULTS, "unexpected_errors", "audit_faults")


def as_json(outcome: Outcome) -> dict[str, object]:
    """The outcome for machines."""
    chronicle, findings = outcome.chronicle, outcome.findings
    return {
        "clean": outcome.clean,
        "seed": outcome.scenario.seed,
        "seconds": round(outcome.seconds, 1),
        "build": outcome.scenario.build.value,
        "kills": chronicle.kills.total(),
        "kills_by_moment": dict(sorted(chronicle.kills.items())),
        "restarts": dict(sorted(chronicle.restarts.items())),
        "freezes": chronicle.freezes.total(),
        "freezes_by_moment": dict(sorted(chronicle.freezes.items())),
        "encounters": chronicle.encounters,
        "cuts": chronicle.cuts,
        "tickets": outcome.ticket_count,
        "changes": outcome.change_count,
        "breaches": findings.breaches,
        "events": findings.events,
        **{fault: findings.faults[fault] for fault in _FAULTS},
        "audit_faults": {
            finding.check.code: finding.count
            for finding in outcome.audit.findings
            if finding.count and finding.check.severity is Severity.FAULT
        },
        "drained": outcome.drained,
        "cycles": dict(sorted(chronicle.cycles.items())),
        "unexpected_errors": dict(chronicle.unexpected),
        "longest_recovery_s": round(chronicle.longest_recovery_s, 2),
        "longest_without_success_s": round(chronicle.longest_without_success_s, 2),
        "longest_recovery_after": chronicle.slowest_to_recover,
    }


def as_table(outcome: Outcome) -> Table:
    """The outcome for people."""
    table = Table("", "", title=f"chaos, seed {outcome.scenario.seed}", show_header=False)
    for name, value in as_json(outcome).items():
        told = ", ".join(f"{key} {count}" for key, count in value.items()) if isinstance(value, dict) else str(value)
        bad = value is False or (name in _BAD_WHEN_FULL and value)
        table.add_row(name.replace("_", " "), told or "none", style="bold red" if bad else None)
    table.caption = "clean" if outcome.clean else "NOT clean"
    return table
