"""Kafka: the exactly-once relay, both topics, and readers of the event topic.

``relay`` publishes the outbox exactly once, by one ``takeover`` after another. ``progress`` is the record that holds
the published position; ``consistency`` compares it with Postgres; ``pace`` sizes a transaction; ``hanging`` ends
transactions that the broker never ended. ``topics`` creates and checks both topics, with ``refusals``, ``durability``
and ``offsets``. ``events`` reads the event topic as a consumer does; ``headers`` and ``foreign`` interpret its records.
``settings`` validates the settings, ``client_config`` builds the clients' configurations, ``clients`` opens the
clients, ``faults`` translates their errors into ours, ``deadline`` bounds an attempt in time.

What belongs here: calls of the Kafka client (the auditor has its own). What does not: SQL. The relay sees Postgres
through the protocol in ``sla_pipeline/outbox.py``; recovery is a room of its own.
"""
