"""Everything that talks to Kafka.

``relay`` publishes the outbox exactly once, by one ``takeover`` after another; ``progress`` is the record by which it
knows how far it came, ``agreement`` compares that with Postgres, ``outbox`` says what it needs of Postgres. ``topics``
creates and checks both topics, ``events`` reads the event topic as a consumer does. ``recovery`` mends what the relay
refuses to guess, from what ``published`` finds on the topic. ``settings`` holds the settings and the client
configurations, ``clients`` opens the clients, ``faults`` turns their errors into ours, ``deadline`` bounds an attempt
in time.

What does not belong here: SQL. The relay and recovery see Postgres through protocols only.
"""
