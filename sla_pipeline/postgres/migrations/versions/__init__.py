"""The revisions, in two branches. Those of ``sla_monitor`` only add what is missing: `migrate` runs all of them each time.

A revision that renames or drops something must take it out of the earlier ones, or they would put it back.
"""
