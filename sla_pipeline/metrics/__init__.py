"""Prometheus metrics, read from durable state at each scrape (SPEC 9.2)."""
