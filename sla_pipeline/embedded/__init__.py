"""Real PostgreSQL and Apache Kafka from wheels and locked jars, for the demo and the tests.

They need no container and no installed server, but the extra ``demo``. What belongs here: starting a server on
127.0.0.1, and ending it with the process that started it. What does not: schemas, topics and records in the servers
(``postgres/``, ``kafka/``), or any server that production uses.
"""

from sla_pipeline.embedded.errors import ServiceError, UnusableState
from sla_pipeline.embedded.kafka import EmbeddedKafka, embedded_kafka
from sla_pipeline.embedded.ports import free_ports
from sla_pipeline.embedded.postgres import EmbeddedPostgres, embedded_postgres
from sla_pipeline.embedded.supervision import Service

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
