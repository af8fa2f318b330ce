"""The independent auditor: compares tickets, breach records and the topic with code of its own.

``verify`` is the entry point and fixes the order of reading. ``records`` reads Postgres, ``reading`` reads Kafka,
``contract`` checks one message, ``reconcile`` compares records and events, ``positions`` compares how far each side is,
``findings`` holds the checks and the report, ``report`` prints it.

What does not belong here: a statement, a read position or a comparison of the job's. An auditor that shared them would
repeat their mistakes. Of the rest of the package it uses the rule (``breach``), the wire contract (``event``), the
errors, and what connects (``postgres.session``; ``kafka.settings``, ``kafka.clients``, ``kafka.faults`` and
``kafka.deadline``: opening a client and translating its errors is no part of what the audit checks).
"""
