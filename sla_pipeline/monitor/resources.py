"""Dagster's resources: Postgres and Kafka as the ops get them, opened at first use, closed at the end of the run.

What belongs here: carrying settings from the environment into a run. What does not: connecting (``postgres/``, ``kafka/``).
"""

from typing import Any

import dagster as dg
from pydantic import Field, PrivateAttr

from sla_pipeline.kafka.relay import Relay
from sla_pipeline.kafka.settings import BOOTSTRAP_SERVERS_VARIABLE, CLIENT_CONFIG_VARIABLE, TOPIC_VARIABLE, KafkaSettings
from sla_pipeline.monitor.steps import Database
from sla_pipeline.postgres.session import PostgresSettings

__all__ = ["KafkaResource", "PostgresResource"]


class PostgresResource(dg.ConfigurableResource[Any]):
    """The support service's database, reached with the worker's login."""

    url: str = Field(description="postgresql://USER:PASSWORD@HOST:PORT/DATABASE of the worker's login, a direct connection.")
    single_runner: bool = Field(
        default=False, description="Only one runner at a time, by the advisory lock of SPEC 2.2; the others' cycles do nothing."
    )

    _database: Database | None = PrivateAttr(default=None)

    def database(self) -> Database:
        """The run's session, opened at its first use. Raises ``ConfigurationError`` for a malformed URL."""
        if self._database is None:
            self._database = Database(PostgresSettings(self.url), single_runner=self.single_runner)
        return self._database

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Close the session, and with it the locks that it holds."""
        if self._database is not None:
            self._database.close()
            self._database = None


class KafkaResource(dg.ConfigurableResource[Any]):
    """The brokers and the topic that breach events go to."""

    bootstrap_servers: str = Field(description="HOST:PORT, or several with commas.")
    topic: str = Field(description="The topic of the events; the progress topic and the transactional id are named after it.")
    client_config: str = Field(default="{}", description="A JSON object of further librdkafka settings, such as TLS and SASL.")

    _relay: Relay | None = PrivateAttr(default=None)

    def settings(self) -> KafkaSettings:
        """Validated. Raises ``ConfigurationError``."""
        return KafkaSettings.from_environment(
            {
                BOOTSTRAP_SERVERS_VARIABLE: self.bootstrap_servers,
                TOPIC_VARIABLE: self.topic,
                CLIENT_CONFIG_VARIABLE: self.client_config,
            }
        )

    def relay(self) -> Relay:
        """The run's relay, made at its first use."""
        if self._relay is None:
            self._relay = Relay(self.settings())
        return self._relay

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Close the readers."""
        if self._relay is not None:
            self._relay.close()
            self._relay = None
