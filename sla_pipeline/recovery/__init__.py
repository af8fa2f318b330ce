"""Diagnosis and repair after publishing stopped because Postgres and Kafka contradict each other (``FailClosed``).

``repair.py`` explains the cases. Nothing here runs by itself: a person runs ``sla-pipeline recover``, which also
requests the confirmation (``cli/recover.py``).
"""
