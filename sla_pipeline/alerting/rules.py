"""The alert rules, the one place of each: name, severity, threshold, period, sentence and runbook (SPEC 9.5).

The status command, the check ``backlog_size`` and the exporter evaluate ``condition`` on durable state. The Prometheus
rule file is made from ``expression``; a test holds it equal.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sla_pipeline.alerting import conditions
from sla_pipeline.alerting.conditions import Condition
from sla_pipeline.health import DETECTION_SLO_SECONDS, Health

__all__ = ["BACKLOG", "RULES", "Evaluation", "Rule", "RuleState", "Severity", "evaluate"]

_RUNBOOKS = "docs/runbooks"
_BACKLOG = f"{_RUNBOOKS}/ticket-sla-backlog.md"
_NOT_RUNNING = f"{_RUNBOOKS}/ticket-sla-not-running.md"
_NOT_PUBLISHING = f"{_RUNBOOKS}/ticket-sla-not-publishing.md"
# Two scrapes: one odd reading calls nobody.
_PERIOD_SECONDS = 30.0


class Severity(StrEnum):
    """``critical`` calls somebody now, ``warning`` is read in working hours."""

    CRITICAL = "critical"
    WARNING = "warning"


class RuleState(StrEnum):
    """State of a rule: its condition does not hold, holds for less than the rule's period, or holds for longer."""

    OK = "ok"
    PENDING = "pending"
    FIRING = "firing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One alert rule. It fires when its condition has held for ``for_seconds``."""

    name: str
    severity: Severity
    summary: str
    """Sentence for people; ``{threshold}`` stands for the threshold."""
    threshold: float
    for_seconds: float = _PERIOD_SECONDS
    runbook: str
    """Path in the repository, with the section's anchor."""
    condition: Callable[[Health, float], Condition | None] | None
    """Return the condition if it holds for a threshold; None for a rule of Prometheus alone."""
    expression: str
    """PromQL; ``{threshold}`` stands for the threshold."""

    def sentence(self) -> str:
        """Return ``summary`` with the threshold."""
        return self.summary.format(threshold=f"{self.threshold:g}")

    def promql(self) -> str:
        """Return ``expression`` with the threshold."""
        return self.expression.replace("{threshold}", f"{self.threshold:g}")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """State of a rule. ``since`` and ``text`` are None while the rule is ok."""

    rule: Rule
    state: RuleState
    since: datetime | None = None
    """Time at which the trouble began, as far as the state shows it."""
    text: str | None = None
    """Sentence with the values found."""


PUBLISHING_STOPPED = Rule(
    name="TicketSlaPublishingStopped",
    severity=Severity.CRITICAL,
    summary="Postgres and Kafka contradict each other: nothing is published until they are repaired.",
    threshold=0,
    runbook=f"{_NOT_PUBLISHING}#postgres-and-kafka-contradict-each-other",
    condition=conditions.publishing_stopped,
    expression="support_ticket_sla_publishing_stopped > {threshold}",
)
PUBLISHING_BEHIND = Rule(
    name="TicketSlaPublishingBehind",
    severity=Severity.CRITICAL,
    summary="A breach has been marked for more than {threshold} s and its event is not published.",
    threshold=120,
    runbook=_NOT_PUBLISHING,
    condition=conditions.publishing_behind,
    expression="support_ticket_sla_unpublished_age_seconds > {threshold}",
)
NOT_RUNNING = Rule(
    name="TicketSlaNotRunning",
    severity=Severity.CRITICAL,
    summary="No cycle has succeeded for more than {threshold} s: breaches may be missed.",
    threshold=300,
    runbook=_NOT_RUNNING,
    condition=conditions.not_running,
    expression=(
        "time() - (support_ticket_sla_last_success_timestamp_seconds or support_ticket_sla_created_timestamp_seconds) "
        "> {threshold}"
    ),
)
BACKLOG = Rule(
    name="TicketSlaBacklog",
    severity=Severity.CRITICAL,
    summary="More than {threshold} tickets have been overdue and not marked for more than ten minutes.",
    threshold=100,
    for_seconds=600,
    runbook=_BACKLOG,
    condition=conditions.backlog,
    expression="support_ticket_sla_backlog > {threshold}",
)
TICKETS_SET_ASIDE = Rule(
    name="TicketSlaTicketsSetAside",
    severity=Severity.CRITICAL,
    summary="Overdue tickets cannot be marked, and nobody is called for them.",
    threshold=0,
    runbook=f"{_BACKLOG}#tickets-are-set-aside",
    condition=conditions.tickets_set_aside,
    expression="support_ticket_sla_set_aside_tickets > {threshold}",
)
ERRORS = Rule(
    name="TicketSlaErrors",
    severity=Severity.WARNING,
    summary="Cycles have had errors for five minutes.",
    threshold=0,
    for_seconds=300,
    runbook=f"{_NOT_RUNNING}#cycles-have-errors",
    condition=conditions.errors,
    # three minutes: one error alone does not hold for five, errors of every second cycle do
    expression="increase(support_ticket_sla_errors_total[3m]) > {threshold}",
)
CYCLE_SLOW = Rule(
    name="TicketSlaCycleSlow",
    severity=Severity.WARNING,
    summary="A cycle took longer than {threshold} ms.",
    threshold=30_000,
    runbook=f"{_BACKLOG}#cycles-are-slow",
    condition=conditions.cycle_slow,
    expression="support_ticket_sla_cycle_duration_ms > {threshold}",
)
DETECTION_LATE = Rule(
    name="TicketSlaDetectionLate",
    severity=Severity.WARNING,
    summary="The p99 of the detection delay in the last hour is above {threshold} s.",
    threshold=DETECTION_SLO_SECONDS,
    runbook=f"{_BACKLOG}#detection-is-late",
    condition=conditions.detection_late,
    expression=(
        "histogram_quantile(0.99, sum by (le) (increase(support_ticket_sla_detection_delay_seconds_bucket[1h]))) > "
        "{threshold}"
    ),
)
EXPORTER_DOWN = Rule(
    name="TicketSlaExporterDown",
    severity=Severity.CRITICAL,
    summary="The exporter does not answer, or cannot read the database: Prometheus is blind.",
    threshold=1,
    for_seconds=120,
    runbook=f"{_NOT_RUNNING}#the-exporter-is-down",
    condition=None,
    expression="support_ticket_sla_up < {threshold} or absent(support_ticket_sla_up)",
)

RULES = (
    PUBLISHING_STOPPED,
    NOT_RUNNING,
    PUBLISHING_BEHIND,
    BACKLOG,
    TICKETS_SET_ASIDE,
    ERRORS,
    CYCLE_SLOW,
    DETECTION_LATE,
    EXPORTER_DOWN,
)
"""All rules, causes before their consequences."""


def evaluate(rules: Sequence[Rule], health: Health) -> list[Evaluation]:
    """Return the state of each rule that has a condition, in their order."""
    evaluations = []
    for rule in rules:
        if rule.condition is None:
            continue
        found = rule.condition(health, rule.threshold)
        if found is None:
            evaluations.append(Evaluation(rule, RuleState.OK))
        else:
            held = health.read_at - found.holds_since >= timedelta(seconds=rule.for_seconds)
            state = RuleState.FIRING if held else RuleState.PENDING
            evaluations.append(Evaluation(rule, state, found.since, found.text))
    return evaluations
