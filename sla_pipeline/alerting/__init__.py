"""Alerts for on-call: rules over the monitor's durable state, status, and the Prometheus rule file.

The rules are pure. Metrics are in ``metrics/``; what Dagster shows of a rule is a check in ``defs/``.
"""
