"""Outcome of a run: its parts, whether it is clean, as JSON and as a table."""

from dataclasses import dataclass

from rich.table import Table

from sla_pipeline.audit.findings import AuditReport, Severity
from sla_pipeline_tests.chaos.disruptions import Scenario
from sla_pipeline_tests.chaos.event_log import EventLog
from sla_pipeline_tests.chaos.reconcile import Findings

__all__ = ["Outcome", "as_json", "as_table"]

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
_BAD_UNLESS_EMPTY = (*_FAULTS, "unexpected_errors", "audit_faults")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a run."""

    scenario: Scenario
    findings: Findings
    audit: AuditReport
    """Report of the product's own auditor on the same data."""
    event_log: EventLog
    seconds: float
    drained: bool
    ticket_count: int
    change_count: int

    @property
    def clean(self) -> bool:
        """Whether all records are published, no check found a fault and no unexpected error occurred."""
        return self.drained and not self.findings.faults and self.audit.clean and not self.event_log.unexpected


def as_json(outcome: Outcome) -> dict[str, object]:
    """Return the outcome as JSON values."""
    event_log, findings = outcome.event_log, outcome.findings
    return {
        "clean": outcome.clean,
        "seed": outcome.scenario.seed,
        "seconds": round(outcome.seconds, 1),
        "build": outcome.scenario.build.value,
        "kills": event_log.kills.total(),
        "kills_by_moment": dict(sorted(event_log.kills.items())),
        "restarts": dict(sorted(event_log.restarts.items())),
        "pauses": event_log.pauses.total(),
        "pauses_by_moment": dict(sorted(event_log.pauses.items())),
        "encounters": event_log.encounters,
        "cuts": event_log.cuts,
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
        "cycles": dict(sorted(event_log.cycles.items())),
        "unexpected_errors": dict(event_log.unexpected),
        "longest_recovery_s": round(event_log.longest_recovery_s, 2),
        "longest_without_success_s": round(event_log.longest_without_success_s, 2),
        "longest_recovery_after": event_log.slowest_to_recover,
    }


def as_table(outcome: Outcome) -> Table:
    """Return the outcome as a table."""
    table = Table("", "", title=f"chaos, seed {outcome.scenario.seed}", show_header=False)
    for name, value in as_json(outcome).items():
        text = ", ".join(f"{key} {count}" for key, count in value.items()) if isinstance(value, dict) else str(value)
        bad = value is False or (name in _BAD_UNLESS_EMPTY and value)
        table.add_row(name.replace("_", " "), text or "none", style="bold red" if bad else None)
    table.caption = "clean" if outcome.clean else "NOT clean"
    return table
