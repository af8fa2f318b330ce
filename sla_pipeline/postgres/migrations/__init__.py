"""Alembic's scripts.

Branch ``support_service`` creates the support service's table for demo and tests, branch ``sla_monitor`` our own
objects. What belongs here: the revisions (``versions/``) and the functions that apply their text. A revision is frozen,
so it imports nothing but Alembic and these functions, and these are a frozen interface: add functions, never change
one.
"""
