"""The independent auditor: tickets, breach records and the topic compared with each other, from outside of the job.

``verify`` is the way in and fixes the order of reading; ``records`` reads Postgres, ``reading`` reads Kafka,
``contract`` reads one message, ``ledger`` compares while records and events stream past (``entry`` is its unit),
``settlement`` compares when both are complete, ``findings`` holds the checks and the report, ``report`` prints it.

What does not belong here: a statement, a consumer or a comparison of the job's. A witness that used them would repeat
their mistakes. Of the rest of the package it knows the rule (``breach``), the wire contract (``event``), the errors,
and how to connect (``kafka.settings``, ``postgres.session``).
"""
