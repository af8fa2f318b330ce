"""Real PostgreSQL and Apache Kafka from wheels and locked jars, for the demo and the tests: no container, no installed server.

What belongs here: bringing up a server on 127.0.0.1, and ending it with whoever started it. What does not: what lives
in the server (``postgres/``, ``kafka/``), or any server that production uses. Needs the extra ``demo``.
"""

from sla_pipeline.embedded.kafka import EmbeddedKafka, embedded_kafka
from sla_pipeline.embedded.ports import free_ports
from sla_pipeline.embedded.postgres import EmbeddedPostgres, embedded_postgres
from sla_pipeline.embedded.supervision import Service, ServiceError, UnusableState

__all__ = [
    "EmbeddedKafka",
    "EmbeddedPostgres",
    "Service",
    "ServiceError",
    "UnusableState",
    "embedded_kafka",
    "embedded_postgres",
    "free_ports",
]
