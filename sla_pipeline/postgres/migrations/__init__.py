"""Alembic's scripts: ``support_service`` creates the support service's table for demo and tests, ``sla_monitor`` our
own objects.
"""
