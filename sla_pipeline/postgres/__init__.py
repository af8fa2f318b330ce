"""All that talks to Postgres: sessions, migrations, one module per table, each statement named and explained beside its index.

What does not belong here: what a cycle does with these statements (``monitor/``), and Kafka.
"""
