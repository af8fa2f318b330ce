"""Everything that talks to Kafka.

``relay`` publishes the outbox exactly once, ``progress`` is the record by which it knows how far it came, ``agreement`` compares that
record with Postgres, ``topics`` creates and checks both topics, ``events`` reads the event topic as a consumer does, ``recovery`` mends
what the relay refuses to guess. ``settings`` holds the settings and the client configurations, ``clients`` opens the clients,
``faults`` turns their errors into ours, ``deadline`` bounds them in time.

What does not belong here: SQL. The relay sees Postgres through the ``Outbox`` protocol only, ``recovery`` through one of its own.
"""
