"""The revisions, in two branches. Each is frozen text: it is never edited once a database has run it.

Rules of branch ``sla_monitor``:

- `migrate` runs every revision again each time, to restore what was lost. So a revision only adds what is missing.
- ``compatible_from`` names the oldest revision whose workers work on the database after this one. `migrate` writes it
  beside the revision, where older workers read it (``schema.py``). The first four name themselves, because the versions
  of their time accept no other revision than their own.
- Expand, then contract. A revision that only adds (a table, a column that may be null or has a default) keeps the
  ``compatible_from`` of the one before. A revision that drops, renames or tightens something comes one release later,
  when every worker has stopped using it. Its ``compatible_from`` is the revision of the first version that has stopped,
  so that version brings a revision of its own, an empty one if need be.
- ``drops`` names what a revision drops: ``schema.table.column``, ``schema.table.constraint`` or ``schema.index``.
  Earlier revisions then do not add it to a table that exists. A dropped name is not used again.
"""
