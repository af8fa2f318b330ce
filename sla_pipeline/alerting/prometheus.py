"""Prometheus rule file, made from the alert rules. ``python -m sla_pipeline.alerting.prometheus`` prints it."""

import sys

import yaml

from sla_pipeline.alerting.rules import RULES

__all__ = ["rule_file"]

_HEADER = (
    "# Written by `python -m sla_pipeline.alerting.prometheus`; edit sla_pipeline/alerting/rules.py instead, and write "
    "it again.\n"
)


def rule_file() -> str:
    """Return the rules as YAML, in the format of ``rule_files``."""
    rules = [
        {
            "alert": rule.name,
            "expr": rule.promql(),
            "for": f"{rule.for_seconds:g}s",
            "labels": {"severity": rule.severity.value, "service": "ticket-sla-monitor"},
            "annotations": {"summary": rule.sentence(), "runbook": rule.runbook},
        }
        for rule in RULES
    ]
    document = {"groups": [{"name": "ticket_sla", "rules": rules}]}
    text: str = yaml.safe_dump(document, sort_keys=False, width=120, allow_unicode=True)
    return _HEADER + text


if __name__ == "__main__":
    sys.stdout.write(rule_file())
