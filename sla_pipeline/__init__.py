"""Ticket SLA monitor: marks every breached ticket once and publishes exactly one Kafka event for it.

The rule, the event's contract and the types of a cycle live in this package's top modules; they import neither Dagster
nor a driver. Everything that talks to a server lives in a room of its own below it. README.md has the map.
"""
