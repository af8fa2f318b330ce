"""Alerts for on-call: rules over the monitor's durable state, transitions, delivery.

The rules are pure. What Dagster schedules of this is in ``defs/alerting/``; metrics that do not depend on Dagster are
in ``metrics/``.
"""
