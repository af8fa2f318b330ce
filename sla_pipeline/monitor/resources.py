"""Dagster's resources: Postgres and Kafka, opened at first use, closed at the end of the run; values between the ops.

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

# Remedy shown by every failed run, in the words of the run's page.
RE_EXECUTE_ALL = (
    'Press "Re-execute all" ("All steps in root run" in its menu) to run a whole cycle now; the schedule runs one every'
    " minute anyway. A cycle picks up everything that is overdue or unpublished, and duplicates nothing."
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
    """Values passed between the ops of one cycle, in memory, for the length of the run.

    Not ``mem_io_manager``: Dagster then refuses a re-execution from failure and advises to store the values. Stored values
    would be wrong in a later run: its time is another, and operators have answered since.
    """

    def __init__(self) -> None:
        self._values: dict[tuple[str, ...], object] = {}

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        """Store the value."""
        self._values[tuple(context.get_identifier())] = obj

    def load_input(self, context: dg.InputContext) -> object:
        """Return the value. Raises ``dagster.Failure`` with the remedy when the op that made it ran in another run."""
        assert context.upstream_output is not None  # noqa: S101  no input of a cycle's op comes from outside of it
        identifier = tuple(context.upstream_output.get_identifier())
        if identifier not in self._values:
            raise dg.Failure(
                description=f"A cycle cannot be resumed: the values of step {context.upstream_output.step_key} ended with run"
                f" {context.upstream_output.run_id}. {RE_EXECUTE_ALL}",
                allow_retries=False,
            )
        return self._values[identifier]


@dg.io_manager(description="Values passed between the ops of a cycle, in memory; none outlives its run.")
def cycle_values() -> CycleValues:
    """Made once per run."""
    return CycleValues()
