"""Exit codes of the commands, and the class of error that each stands for."""

from sla_pipeline.errors import CycleFailed, InputError, RetryableError, SlaPipelineError

__all__ = ["EPILOG", "EXIT_BROKEN", "EXIT_FAILED", "EXIT_INTERRUPTED", "exit_code"]

EXIT_FAILED, EXIT_USAGE, EXIT_BROKEN, EXIT_TRY_AGAIN, EXIT_INTERRUPTED = 1, 2, 3, 75, 130

EPILOG = (
    "Exit codes: 0 done; 1 done, but something failed or does not agree (it is printed); 2 a wrong option, variable "
    "or value; 3 Postgres or Kafka is not as it must be, a person must act; 75 a server is away, try again; 130 "
    "interrupted. Settings: SLA_POSTGRES_URL, SLA_POSTGRES_OWNER_URL (migrate, recover), SLA_KAFKA_BOOTSTRAP_SERVERS, "
    "SLA_KAFKA_TOPIC, SLA_KAFKA_CLIENT_CONFIG."
)
"""Last paragraph of each command's help."""


def exit_code(error: SlaPipelineError) -> int:
    """Return the exit code of a command that ended with ``error``."""
    if isinstance(error, InputError):
        return EXIT_USAGE
    if isinstance(error, CycleFailed):
        return EXIT_FAILED
    return EXIT_TRY_AGAIN if isinstance(error, RetryableError) else EXIT_BROKEN
