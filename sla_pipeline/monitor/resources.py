"""Dagster's resources: Postgres and Kafka, opened at first use, closed at the end of the run; the values between the ops.

What belongs here: carrying settings from the environment into a run. What does not: connecting (``postgres/``, ``kafka/``).
"""

from typing import Any

import dagster as dg
from pydantic import Field, PrivateAttr

from sla_pipeline.kafka.relay import Relay
from sla_pipeline.kafka.settings import BOOTSTRAP_SERVERS_VARIABLE, CLIENT_CONFIG_VARIABLE, TOPIC_VARIABLE, KafkaSettings
from sla_pipeline.monitor.steps import Database
from sla_pipeline.postgres.session import PostgresSettings

__all__ = ["RE_EXECUTE_ALL", "KafkaResource", "PostgresResource", "cycle_values"]

# what a person may press after a failed run; the names are those of the run's page
RE_EXECUTE_ALL = (
    'Press "Re-execute all" ("All steps in root run" in its menu) for a whole cycle now; the next one starts within a minute anyway.'
    " A cycle takes all that is overdue or waits to be published, and doubles nothing."
)


class PostgresResource(dg.ConfigurableResource[Any]):
    """The support service's database, reached with the worker's login."""

    url: str = Field(description="postgresql://USER:PASSWORD@HOST:PORT/DATABASE of the worker's login, a direct connection.")
    single_runner: bool = Field(
        default=False, description="Only one runner at a time, by the advisory lock of SPEC 2.2; the others' cycles do nothing."
    )

    _database: Database | None = PrivateAttr(default=None)

    def settings(self) -> PostgresSettings:
        """Validated. Raises ``ConfigurationError`` for a malformed URL."""
        return PostgresSettings(self.url)

    def database(self) -> Database:
        """The run's session, opened at its first use. Raises ``ConfigurationError`` for a malformed URL."""
        if self._database is None:
            self._database = Database(self.settings(), single_runner=self.single_runner)
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


class CycleValues(dg.IOManager):
    """Keeps what one op of a cycle hands to the next, in memory, for as long as the run lasts.

    Not Dagster's own ``mem_io_manager``: with it a re-execution from failure ends with an advice to store the values, which are
    worthless in another run: another cycle has another time, and other operators have answered.
    """

    def __init__(self) -> None:
        self._values: dict[tuple[str, ...], object] = {}

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        """Keep the value."""
        self._values[tuple(context.get_identifier())] = obj

    def load_input(self, context: dg.InputContext) -> object:
        """Return the value. Raises ``dagster.Failure`` for one that was made in another run."""
        assert context.upstream_output is not None  # noqa: S101  no input of a cycle's op comes from outside of it
        identifier = tuple(context.upstream_output.get_identifier())
        if identifier not in self._values:
            raise dg.Failure(
                description=f"This run does not hold what step {context.upstream_output.step_key} of run"
                f" {context.upstream_output.run_id} has found: a cycle cannot be continued. {RE_EXECUTE_ALL}",
                allow_retries=False,
            )
        return self._values[identifier]


@dg.io_manager(description="Values between the ops of a cycle, in memory; none of them outlives its run.")
def cycle_values() -> CycleValues:
    """An empty one per run."""
    return CycleValues()
