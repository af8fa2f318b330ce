"""The exactly-once relay: publishes what waits in the outbox, takeover by takeover, within one bound in time (SPEC 3.3, 5.6).

What belongs here: the lock, the loop, the time. What does not: the steps of a takeover and why they are safe
(``takeover.py``), SQL (``postgres/``), mending a contradiction (``recovery.py``).
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

_log = logging.getLogger(__name__)

TRANSACTION_LIMIT = 10_000
"""The most events of one transaction: a whole cycle at its default ceiling, since a transaction costs 40 ms before its
first event.
"""

# a cycle with Kafka away must still end in under 30 s, marking included (SPEC 3.3)
PUBLISH_SECONDS = 20.0
# another cycle's publisher needs well under a second for its share; longer means that it is stuck
_LOCK_SECONDS = 5.0
_LOCK_POLL_SECONDS = 0.1
# a further takeover begins only with this much time left: one that cannot end costs more than it brings
_MIN_SECONDS_FOR_A_TAKEOVER = 5.0


class Relay:
    """Publishes an outbox. Keeps its readers and its admin client between the takeovers of a cycle; one thread uses it at a time.

    ``on_step`` is called at the end of each step with its name (``STEPS``); ``transaction_limit`` is the most events of
    one transaction.
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
        """Checks both topics, then publishes what waits, leftovers of earlier cycles first, until nothing waits or time is nearly up.

        ``seconds`` bound all that is done with Kafka. The topics are checked with nothing waiting too, so that an idle
        cycle finds a wrong setting before the first event does. ``run_id`` is noted in the progress record. ``totals``
        is filled as transactions commit, so that a caller keeps the count of an attempt that ends in an error. Raises
        ``PublisherBusy``, ``PublisherFenced`` or ``KafkaUnavailable``, after which the next cycle goes on by itself;
        ``KafkaSetupError`` or ``FailClosed``, for which a person must act; or what the outbox raises.
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
                    _log.warning("trying again with at most %d events in the transaction: %s", limit, error)
                else:
                    aborted = takeover.aborted
                    if aborted is None and (
                        _nothing_waits(outbox) or deadline.remaining_seconds() < _MIN_SECONDS_FOR_A_TAKEOVER
                    ):
                        return totals
        finally:
            _give_back_lock(outbox)

    def close(self) -> None:
        """Closes the readers and the admin client. May be called again; the relay opens them anew when it is used."""
        self._reader.close()
        self._topics.close()

    def __enter__(self) -> "Relay":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take_lock(self, outbox: Outbox, deadline: Deadline) -> None:
        patience = Deadline(min(self._lock_seconds, deadline.remaining_seconds()))
        while not outbox.try_lock():
            if not patience.remaining_seconds():
                raise PublisherBusy(
                    f"another publisher has held the relay's lock in Postgres for more than {self._lock_seconds:g} s; "
                    "it publishes these records, or the next cycle does once its session has ended"
                )
            time.sleep(_LOCK_POLL_SECONDS)


def _nothing_waits(outbox: Outbox) -> bool:
    """Whether every record is published.

    The copy of the position is read first: both numbers only grow, so equal means equal.
    """
    return outbox.published_seq() == outbox.last_seq()


def _give_back_lock(outbox: Outbox) -> None:
    """Gives the lock back; a session that was cut has given it back already."""
    try:
        outbox.unlock()
    except Exception:  # noqa: BLE001 - raised here, it would hide the error that is on its way
        _log.warning("the relay's lock was not given back; it ends with its session", exc_info=True)
