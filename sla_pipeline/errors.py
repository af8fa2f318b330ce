"""The errors that this package raises on purpose.

What belongs here: one small hierarchy, told apart by what the reader has to do. What does not: catching them, or the words of a
single message; each message is written where the fault is seen, and says what is wrong, with which value, and what to do.
"""


class SlaPipelineError(Exception):
    """Root of all errors raised on purpose; ``str()`` of it is fit to be shown to on-call and holds no secret."""


class InputError(SlaPipelineError):
    """A value that a person or a configuration gave is unusable. Permanent: nothing was touched (SPEC 3.2)."""


class ConfigurationError(InputError):
    """A setting of the environment is missing or malformed; the message names the variable."""


class DatabaseError(SlaPipelineError):
    """Postgres is not as the job needs it: missing table, column, right or migration. Permanent until someone acts."""


class RightMissing(DatabaseError):
    """The worker's login lacks a right. Permanent until someone grants it."""


class DatabaseUnavailable(SlaPipelineError):
    """Postgres could not be reached or broke off. Retryable: the next cycle tries again (SPEC 8)."""


class DatabaseBusy(DatabaseUnavailable):
    """Postgres gave up one statement, by a time-out or a deadlock; the session is unharmed. Retryable."""


class ClockSkewError(SlaPipelineError):
    """The worker's clock and the database's differ by more than is safe; marking could be early (SPEC 4.1)."""


class CycleLocked(SlaPipelineError):
    """Single-runner mode: another runner holds the advisory lock of SPEC 2.2."""


class KafkaError(SlaPipelineError):
    """Kafka is not as the job needs it: missing topic, wrong setting, an event that the broker refuses. Permanent until someone acts."""


class KafkaUnavailable(SlaPipelineError):
    """Kafka could not be reached, or the outcome of a transaction is unknown. Retryable: the next cycle reads back and goes on."""


class PublisherBusy(SlaPipelineError):
    """Another publisher holds the relay's lock. Retryable."""


class PublisherFenced(SlaPipelineError):
    """Another publisher has taken over in the middle of our takeover; what we had not committed is not published by us. Retryable."""


class FailClosed(SlaPipelineError):
    """Postgres and Kafka contradict each other: publishing stops until a person decides, because guessing would double or lose events."""


class UnexpectedFault(SlaPipelineError):
    """A step met an error that nobody foresaw: a fault of this package. The log has its traceback."""


class CycleFailed(SlaPipelineError):
    """A cycle came to its end and did all it could, but something in it failed; the message lists what."""


class CycleStopped(KeyboardInterrupt):
    """A stop was requested and the cycle has ended between two batches (SPEC 3.4). Not an ``Exception``: nothing may swallow it."""
