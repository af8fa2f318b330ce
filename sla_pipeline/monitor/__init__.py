"""The job: what a cycle does, step by step, and how Dagster runs it.

``steps.py`` is the cycle in plain Python; ``ops.py``, ``job.py`` and ``resources.py`` put it into Dagster;
``runner.py`` runs it without Dagster. What does not belong here: SQL, Kafka's protocol, the rule.
"""
