"""Status of the monitor for one screen: green or not, why, since when, and which runbook."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sla_pipeline.alerting.rules import Evaluation, RuleState
from sla_pipeline.health import Health

__all__ = ["Status", "status_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Facts of one reading, and the rules whose conditions hold: firing first, then pending."""

    health: Health
    troubles: Sequence[Evaluation]

    @property
    def green(self) -> bool:
        """True when no rule fires."""
        return all(trouble.state is not RuleState.FIRING for trouble in self.troubles)

    def lines(self) -> list[str]:
        """Return the screen's lines; times are in UTC."""
        firing = sum(trouble.state is RuleState.FIRING for trouble in self.troubles)
        lines = ["green: no alert fires" if self.green else f"NOT green: {firing} alerts fire"]
        for trouble in self.troubles:
            rule = trouble.rule
            lines += [
                "",
                f"{trouble.state.value} {rule.severity.value} {rule.name}, since {_time(trouble.since)}",
                f"  {rule.sentence()}",
                f"  {trouble.text}",
                f"  {rule.runbook}",
            ]
        last = self.health.last_cycle
        cycle = (
            f"{last.state} at {_time(last.finished_at)}: {last.totals.as_line()}" if last else "none in the last hour"
        )
        lines += [
            "",
            f"read at           {_time(self.health.read_at)}",
            f"last success      {_time(self.health.last_success_at)}",
            f"last cycle        {cycle}",
            f"breaches          {self.health.last_seq} marked, {self.health.published_seq} published",
            f"set aside         {self.health.set_aside_count}",
        ]
        return lines

    def as_dict(self) -> dict[str, object]:
        """Return the status for JSON; times in ISO 8601."""
        last = self.health.last_cycle
        return {
            "green": self.green,
            "read_at": self.health.read_at.isoformat(),
            "last_success_at": _iso(self.health.last_success_at),
            "last_cycle": last
            and {
                "state": last.state,
                "finished_at": last.finished_at.isoformat(),
                **last.totals.as_metadata(),
                "error": last.error,
            },
            "marked_count": self.health.last_seq,
            "published_count": self.health.published_seq,
            "set_aside_count": self.health.set_aside_count,
            "alerts": [
                {
                    "name": trouble.rule.name,
                    "state": trouble.state.value,
                    "severity": trouble.rule.severity.value,
                    "since": _iso(trouble.since),
                    "summary": trouble.rule.sentence(),
                    "text": trouble.text,
                    "runbook": trouble.rule.runbook,
                }
                for trouble in self.troubles
            ],
        }


def status_of(health: Health, evaluations: Sequence[Evaluation]) -> Status:
    """Return the status of one reading and its evaluations."""
    troubles = [found for found in evaluations if found.state is not RuleState.OK]
    # stable: within a state the order of the rules, causes before their consequences
    troubles.sort(key=lambda found: found.state is not RuleState.FIRING)
    return Status(health=health, troubles=troubles)


def _time(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC" if moment else "never"


def _iso(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None
