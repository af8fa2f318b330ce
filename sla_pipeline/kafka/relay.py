"""The exactly-once relay: publishes waiting records, takeover by takeover, within one time limit (SPEC 3.3, 5.6).

Here are the lock, the loop and the time limit; ``takeover.py`` has the steps of a takeover and the reasons for them.
"""

import logging
import time
from types import TracebackType

from sla_pipeline.cycle import CycleTotals, OnStep, no_step
from sla_pipeline.errors import KafkaUnavailable, PublisherBusy
from sla_pipeline.kafka.deadline import Deadline
from sla_pipeline.kafka.progress import ProgressReader
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.takeover import STEPS, Takeover
from sla_pipeline.kafka.topics import TopicChecker
from sla_pipeline.outbox import Outbox

__all__ = ["PUBLISH_SECONDS", "STEPS", "TRANSACTION_LIMIT", "Relay"]

log = logging.getLogger(__name__)

TRANSACTION_LIMIT = 10_000
"""Most events of one transaction: a whole cycle at its default ceiling.

A transaction costs 40 ms before its first event.
"""

# Bounds publishing: a cycle without Kafka must still end in under 30 s, marking included (SPEC 3.3).
PUBLISH_SECONDS = 20.0
# Bounds the wait for the lock: another publisher usually needs well under a second; a longer hold means it is stuck.
_LOCK_SECONDS = 5.0
_LOCK_POLL_SECONDS = 0.1
# Least time left for a further takeover: one that cannot end costs more than it publishes.
_MIN_SECONDS_FOR_A_TAKEOVER = 5.0


class Relay:
    """Publisher of an outbox, for one thread at a time.

    Its readers and its admin client stay open between the takeovers of a cycle. ``on_step`` is called at the end of
    each step with its name (``STEPS``); ``transaction_limit`` is the most events of one transaction.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        on_step: OnStep = no_step,
        transaction_limit: int = TRANSACTION_LIMIT,
        lock_seconds: float = _LOCK_SECONDS,
    ) -> None:
        self._settings = settings
        self._on_step = on_step
        self._transaction_limit = transaction_limit
        self._lock_seconds = lock_seconds
        self._topics = TopicChecker(settings)
        self._reader = ProgressReader(settings)

    def publish(
        self, outbox: Outbox, *, run_id: str, totals: CycleTotals | None = None, seconds: float = PUBLISH_SECONDS
    ) -> CycleTotals:
        """Check both topics, then publish waiting records, oldest first, until none waits or time is nearly up.

        ``seconds`` bounds all work with Kafka. The topics are checked even when nothing waits, so that an idle cycle
        finds a wrong setting before the first event. ``run_id`` is stored in the progress record. ``totals`` is filled
        as transactions commit, so that a caller keeps the count of an attempt that ends in an error.

        Raise ``PublisherBusy``, ``PublisherFenced`` or ``KafkaUnavailable``, after which the next cycle retries;
        ``KafkaSetupError`` or ``FailClosed``, which a person must correct; or what the outbox raises.
        """
        totals = totals if totals is not None else CycleTotals()
        deadline = Deadline(seconds)
        event_topic = self._topics.check(deadline)
        if _nothing_waits(outbox):
            return totals
        self._take_lock(outbox, deadline)
        limit, aborted = self._transaction_limit, None
        try:
            while True:
                takeover = Takeover(
                    settings=self._settings,
                    outbox=outbox,
                    topics=self._topics,
                    event_topic=event_topic,
                    reader=self._reader,
                    deadline=deadline,
                    run_id=run_id,
                    on_step=self._on_step,
                    transaction_limit=limit,
                    aborted_before=aborted,
                )
                try:
                    takeover.run(totals)
                except KafkaUnavailable as error:
                    limit = takeover.smaller_limit
                    if not limit or deadline.remaining_seconds() < _MIN_SECONDS_FOR_A_TAKEOVER:
                        raise
                    log.warning("trying again with at most %d events in the transaction: %s", limit, error)
                else:
                    aborted = takeover.aborted
                    if aborted is None and (
                        _nothing_waits(outbox) or deadline.remaining_seconds() < _MIN_SECONDS_FOR_A_TAKEOVER
                    ):
                        return totals
        finally:
            _release_lock(outbox)

    def close(self) -> None:
        """Close the readers and the admin client. May be called again; the next use opens new ones."""
        self._reader.close()
        self._topics.close()

    def __enter__(self) -> "Relay":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take_lock(self, outbox: Outbox, deadline: Deadline) -> None:
        lock_deadline = Deadline(min(self._lock_seconds, deadline.remaining_seconds()))
        while not outbox.try_lock():
            if not lock_deadline.remaining_seconds():
                raise PublisherBusy(
                    f"another publisher has held the relay's lock in Postgres for more than {self._lock_seconds:g} s; "
                    "it publishes these records, or the next cycle does once its session has ended"
                )
            time.sleep(_LOCK_POLL_SECONDS)


def _nothing_waits(outbox: Outbox) -> bool:
    """Return whether every record is published.

    The copy of the position is read first: both numbers only grow, so equal numbers cannot be a race.
    """
    return outbox.published_seq() == outbox.last_seq()


def _release_lock(outbox: Outbox) -> None:
    """Release the lock; a session that was cut has released it already."""
    try:
        outbox.unlock()
    except Exception:
        log.warning("the relay's lock was not released; it ends with its session", exc_info=True)
