"""The independent auditor: tickets, breach records and the topic compared with each other, from outside of the job.

``verify`` is the way in and fixes the order of reading; ``records`` reads Postgres, ``reading`` reads Kafka,
``contract`` reads one message, ``ledger`` compares while records and events stream past (``entry`` is its unit),
``settlement`` compares when both are complete, ``findings`` holds the checks and the report, ``report`` prints it.

What does not belong here: a statement, a read position or a comparison of the job's. An auditor that shared them would
repeat their mistakes. Of the rest of the package it uses the rule (``breach``), the wire contract (``event``), the
errors, and how to connect (``postgres.session``; ``kafka.settings``, ``kafka.clients``, ``kafka.faults`` and
``kafka.deadline``: opening a client and translating its errors is no part of what the audit checks).
"""
