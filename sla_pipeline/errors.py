"""The errors that this package raises on purpose: one small hierarchy under two bases, retryable and permanent.

Callers and exit codes depend on the base alone. Each message is written where the fault is detected; it names the
fault, the value, and the remedy.
"""


class SlaPipelineError(Exception):
    """Root of all errors raised on purpose; ``str()`` of it is fit to be shown to on-call and holds no secret."""


class RetryableError(SlaPipelineError):
    """The fault may pass by itself: the next cycle tries again (SPEC 8)."""


class PermanentError(SlaPipelineError):
    """The fault stays until a person acts."""


class InputError(PermanentError):
    """A value given by a person or by the configuration is unusable; nothing was changed (SPEC 3.2)."""


class ConfigurationError(InputError):
    """A setting of the environment is missing or malformed; the message names the variable."""


class PostgresSetupError(PermanentError):
    """Postgres is not set up as the job needs it: a missing table, column, right or migration."""


class PostgresUnavailable(RetryableError):
    """Postgres could not be reached, or the connection broke."""


class PostgresBusy(PostgresUnavailable):
    """Postgres cancelled one statement, after a timeout or a deadlock; the session is unharmed."""


class ClockSkewError(PermanentError):
    """The worker's clock and the database's differ by more than is safe: marking could be early (SPEC 4.1)."""


class CycleLocked(RetryableError):
    """Single-runner mode: another runner holds the advisory lock of SPEC 2.2."""


class KafkaSetupError(PermanentError):
    """Kafka is not set up as the job needs it: a missing topic, a wrong setting, an event that the broker refuses."""


class KafkaUnavailable(RetryableError):
    """Kafka could not be reached, or the outcome of a transaction is unknown; the next cycle reads it back."""


class PublisherBusy(RetryableError):
    """Another publisher holds the relay's lock."""


class PublisherFenced(RetryableError):
    """Another publisher took over during our takeover; we published nothing that was not committed before."""


class FailClosed(PermanentError):
    """Postgres and Kafka contradict each other.

    Publishing stops until a person decides, because a guess would double or lose events.
    """


class UnexpectedFault(PermanentError):
    """An unforeseen exception inside a step: a fault of this package. The log has its traceback."""


class CycleFailed(SlaPipelineError):
    """A cycle ran to its end, but parts of it failed, retryable or not; the message lists them."""


class CycleStopped(KeyboardInterrupt):
    """The cycle ended between two batches because a stop was requested (SPEC 3.4).

    Not an ``Exception``: nothing may swallow it.
    """
