"""Demo of the monitor without a support service: a log of real incidents, its replay, and simulated traffic.

What belongs here: simulation of the support service on ``support.tickets``, and the comparison of the results. What
does not: code that production runs. ``postgres/migrate.py`` creates the demo's table with ``with_tickets=True``.
"""
