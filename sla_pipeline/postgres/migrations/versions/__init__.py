"""The revisions, in two branches. Each is frozen text: it is never edited once a database has run it.

`migrate` runs the revisions of branch ``sla_monitor`` again each time, so each of them only adds what is missing.
"""
