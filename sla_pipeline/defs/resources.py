"""Resources: Postgres and Kafka, opened at first use, closed at the end of the run; values between the ops.

Each run reads its settings from the environment. They are no fields of Dagster's configuration: those are read when
the location loads, in another process and at another time, and a wrong variable would take the location down.
"""

import contextlib
from collections.abc import Iterator

import dagster as dg

from sla_pipeline.kafka.relay import Relay
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.postgres.database import Database
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline.postgres.settings import single_runner_from_environment

__all__ = [
    "RE_EXECUTE_ALL",
    "CycleValues",
    "KafkaResource",
    "PostgresResource",
    "cycle_values",
    "defs",
    "kafka",
    "postgres",
]

# Remedy shown by every failed run, in the words of the run's page.
RE_EXECUTE_ALL = (
    'Press "Re-execute all" ("All steps in root run" in its menu) to run a whole cycle now; the schedule runs one every'
    " minute anyway. A cycle picks up everything that is overdue or unpublished, and duplicates nothing."
)


class PostgresResource:
    """The support service's database, with the worker's login; settings are read when a run or a tick uses it."""

    def __init__(self) -> None:
        self._database: Database | None = None

    def settings(self) -> PostgresSettings:
        """Return the settings of the environment. Raises ``ConfigurationError``."""
        return PostgresSettings.from_environment()

    def database(self) -> Database:
        """Return the run's database, opened at its first use. Raises ``ConfigurationError``."""
        if self._database is None:
            self._database = Database(self.settings(), single_runner=single_runner_from_environment())
        return self._database

    def close(self) -> None:
        """Close the session, and with it the locks that it holds."""
        if self._database is not None:
            self._database.close()
            self._database = None


class KafkaResource:
    """The brokers and the topic of breach events; settings are read when a run uses them."""

    def __init__(self) -> None:
        self._relay: Relay | None = None

    def relay(self) -> Relay:
        """Return the run's relay, made at first use; it connects when it publishes. Raises ``ConfigurationError``."""
        if self._relay is None:
            self._relay = Relay(KafkaSettings.from_environment())
        return self._relay

    def close(self) -> None:
        """Close the readers."""
        if self._relay is not None:
            self._relay.close()
            self._relay = None


@dg.resource(
    config_schema={},
    description="The support service's database. A run or a tick reads SLA_POSTGRES_URL and SLA_SINGLE_RUNNER at use.",
)
def postgres() -> Iterator[PostgresResource]:
    """Yield one resource per run, closed at the run's end."""
    with contextlib.closing(PostgresResource()) as resource:
        yield resource


@dg.resource(
    config_schema={},
    description="The brokers and the topic of breach events. A run reads the variables SLA_KAFKA_* at use.",
)
def kafka() -> Iterator[KafkaResource]:
    """Yield one resource per run, closed at the run's end."""
    with contextlib.closing(KafkaResource()) as resource:
        yield resource


class CycleValues(dg.IOManager):
    """Values passed between the ops of one cycle, in memory, for the length of the run.

    Not ``mem_io_manager``: Dagster then refuses a re-execution from failure and advises to store the values. Stored
    values would be wrong in a later run: its time is another, and operators have answered since.
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
                description=f"A cycle cannot be resumed: the values of step {context.upstream_output.step_key} ended "
                "with run"
                f" {context.upstream_output.run_id}. {RE_EXECUTE_ALL}",
                allow_retries=False,
            )
        return self._values[identifier]


@dg.io_manager(description="Values passed between the ops of a cycle, in memory; none outlives its run.")
def cycle_values() -> CycleValues:
    """Return one IO manager per run."""
    return CycleValues()


@dg.definitions
def defs() -> dg.Definitions:
    """Resources and executor of every job of the location, of the implicit one behind the UI's buttons too.

    The executor runs all ops in one process: those of a cycle pass their values in memory, and a process per op costs
    more than a second each, every minute. ``cycle_values`` is for these ops only; another asset's value goes to
    Dagster's default storage.
    """
    return dg.Definitions(
        executor=dg.in_process_executor,
        resources={"postgres": postgres, "kafka": kafka, "cycle_values": cycle_values},
    )
