"""Everything that shows the monitor at work without a support service: a log of real incidents, its replay, simulated traffic.

What belongs here: playing the support service on ``support.tickets``, and putting next to each other what came of it.
What does not: anything that production runs. The tables of the demo are made by ``postgres/migrate.py`` with
``with_tickets=True``.
"""
