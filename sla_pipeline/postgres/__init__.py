"""All access to Postgres: sessions, migrations, one module per table, each statement named and beside its index.

What does not belong here: what a cycle does with these statements (``monitor/``), and Kafka.
"""
