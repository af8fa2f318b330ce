"""One takeover: one producer, one transaction, every step of exactly-once in its order (SPEC 5.6, 7.2).

The position is kept in Kafka, in the same transaction as the events it speaks of; Postgres holds only a copy of it. So there is no
moment in which an event is out and its position is not. The steps, and why they come in this order:

- ``locked``: the advisory lock in Postgres is ours. For liveness alone: without it two publishers would fence each other for ever, yet
  double nothing. The copy of the position is read now, before Kafka is touched.
- ``connected``: both topics are there and set as they must be; a new producer has its connection.
- ``fenced``: ``init_transactions`` has shut out every publisher before us, and what one had left open is committed or aborted. No position
  read before this could be trusted: a paused publisher might still commit. Then the lock is looked at again.
- ``progress_read``: the position, read to the true end of its topic.
- ``rows_read``: how many records exist, read after the position, and the records themselves. Both numbers only grow, so in this order a
  contradiction is never a race; any contradiction ends here, with nothing sent (``agreement.py``).
- ``begun``, ``produced``, ``flushed``: one transaction with the events and the new position. Any raise of ``produce`` ends the takeover: a
  commit after it would succeed, without the record. Every delivery must have succeeded.
- ``committed``: with a time-out, which may be finite because this producer is never asked again.
- ``advanced``: the copy in Postgres follows.

One transaction for one producer: librdkafka ends transactions by the older protocol, in which a late commit of an earlier transaction
can end a later one of the same producer. An exception anywhere leaves the outcome unknown, whatever it says: the same time-out was seen
with the transaction committed and aborted. The producer is let go without abort or close, and the next takeover reads back what became
of it. What does not belong here: when to take over and how often (``relay.py``), and mending a contradiction (``recovery.py``).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from sla_pipeline.cycle import BreachRecord, OnStep, PublishTotals
from sla_pipeline.errors import PublisherFenced
from sla_pipeline.event import event_headers, event_key
from sla_pipeline.kafka.agreement import require_agreement, require_progress, waiting_records
from sla_pipeline.kafka.clients import TransactionalProducer
from sla_pipeline.kafka.deadline import Deadline
from sla_pipeline.kafka.faults import Scene, translate
from sla_pipeline.kafka.outbox import Outbox
from sla_pipeline.kafka.progress import PROGRESS_KEY, PROGRESS_PARTITION, Progress, ProgressReader
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import TopicChecker

__all__ = ["STEPS", "Takeover", "fitting_records"]

_log = logging.getLogger(__name__)

# each step, and what is being done after it: for the message of an error
_DOING_AFTER = {
    "": "taking the publisher's lock",
    "locked": "connecting",
    "connected": "shutting out earlier publishers",
    "fenced": "reading the progress topic",
    "progress_read": "reading the records to publish",
    "rows_read": "beginning a transaction",
    "begun": "handing events to the client",
    "produced": "delivering events",
    "flushed": "committing a transaction",
    "committed": "noting the new position in Postgres",
    "advanced": "ending a takeover",
}
STEPS = tuple(step for step in _DOING_AFTER if step)
"""The names that ``on_step`` is called with, in order."""

# no single call waits longer; what is healthy answers in milliseconds, and after two limping calls there is time for a third
_CALL_SECONDS = 8.0
# key, headers and the client's own bookkeeping of one record, generously
_RECORD_OVERHEAD_BYTES = 1_024


def fitting_records(records: Sequence[BreachRecord], *, queue_messages: int, queue_bytes: int) -> list[BreachRecord]:
    """The first of ``records``, at least one, that the client's queue holds along with a progress record.

    A full queue would end this takeover, and every later one too; so a backlog larger than the queue goes out in several transactions.
    """
    # half of the queue's bytes: how the client counts them is its own affair
    sizes = accumulate(len(record.payload) + _RECORD_OVERHEAD_BYTES for record in records)
    count = sum(1 for size in sizes if size <= queue_bytes // 2)
    return list(records[: max(1, min(count, queue_messages - 1))])


@dataclass(slots=True)
class Takeover:
    """One attempt. ``topics`` and ``reader`` are the relay's, kept between the takeovers of a cycle; all else ends with this object."""

    settings: KafkaSettings
    outbox: Outbox
    topics: TopicChecker
    reader: ProgressReader
    deadline: Deadline
    run_id: str
    on_step: OnStep
    transaction_limit: int
    _step: str = field(default="", init=False)
    _producer: TransactionalProducer | None = field(default=None, init=False)
    _handed_over: list[BreachRecord] = field(default_factory=list, init=False)

    def run(self, totals: PublishTotals) -> None:
        """Publishes up to ``transaction_limit`` waiting records and counts them in ``totals`` once they are committed.

        Raises our own errors (``faults.translate``), or any other as it is. Whatever is raised, the producer is gone and the reader closed.
        """
        ended_well = False
        try:
            self._run(totals)
            ended_well = True
        except Exception as error:
            ours = self._translated(error)
            if ours is None or ours is error:
                raise
            raise ours from error
        finally:
            # an interruption (a BaseException) passes through here as well, untouched
            if self._producer is not None:
                self._producer.drop()
            if not ended_well:
                self.reader.close()

    def _run(self, totals: PublishTotals) -> None:
        published_before = self.outbox.published_seq()
        self._did("locked")

        producer = self._connect()
        self._did("connected")

        producer.fence(self._timeout())
        self._require_lock()
        self._did("fenced")

        progress = require_progress(self.reader.read(self.deadline), self.settings.progress_topic)
        self._did("progress_read")

        records = self._waiting(progress, published_before)
        self._did("rows_read")

        if records:
            self._transact(producer, records)
            totals.published += len(records)
            totals.transactions += 1
            self._did("committed")
        elif progress.seq > published_before:
            _log.info("run %s had published up to sequence %d, which Postgres did not know yet", progress.run, progress.seq)

        self.outbox.advance(records[-1].seq if records else progress.seq)
        self._did("advanced")

    def _connect(self) -> TransactionalProducer:
        event_topic = self.topics.check(self.deadline)
        self._producer = TransactionalProducer(self.settings, largest_batch_bytes=event_topic.max_message_bytes)
        self._producer.connect(self._timeout())
        return self._producer

    def _require_lock(self) -> None:
        if not self.outbox.holds_lock():
            raise PublisherFenced(
                "the relay's lock in Postgres was lost while taking over, because its session was cut; another publisher may have gone on"
            )

    def _waiting(self, progress: Progress, published_before: int) -> list[BreachRecord]:
        next_seq = self.outbox.next_seq()
        require_agreement(progress, published_before=published_before, next_seq=next_seq)
        # the published row too, to know it again
        from_seq, limit = (progress.seq, self.transaction_limit + 1) if progress.seq else (1, self.transaction_limit)
        waiting = waiting_records(progress, self.outbox.records_from(from_seq, limit), next_seq=next_seq)
        return (
            fitting_records(waiting, queue_messages=self.settings.queue_messages, queue_bytes=self.settings.queue_bytes) if waiting else []
        )

    def _transact(self, producer: TransactionalProducer, records: list[BreachRecord]) -> None:
        topic = self.settings.topic
        producer.begin()
        self._did("begun")

        for record in records:
            self._handed_over.append(record)
            headers = event_headers(correlation_id=record.correlation_id, outbox_seq=record.seq)
            producer.produce(topic, record.payload, event_key(record.ticket_id), headers=headers)
        progress = Progress.of(records, self.run_id)
        producer.produce(self.settings.progress_topic, progress.to_json(), PROGRESS_KEY, partition=PROGRESS_PARTITION)
        self._did("produced")

        producer.deliver(self._timeout())
        self._did("flushed")

        producer.commit(self._timeout())

    def _timeout(self) -> float:
        return self.deadline.timeout_seconds(_CALL_SECONDS)

    def _did(self, step: str) -> None:
        self._step = step
        self.on_step(step)

    def _translated(self, error: Exception) -> Exception | None:
        """Our error for ``error``, made while the producer is still there to tell what it knows."""
        producer, doing = self._producer, _DOING_AFTER[self._step]
        if producer is None:
            return translate(error, Scene(self.settings, doing))
        producer.hear()
        return translate(
            error,
            Scene(
                self.settings,
                doing,
                reported=producer.told,
                rejected=self._rejected(producer),
                transaction_open=self._step in ("begun", "produced", "flushed"),
            ),
        )

    def _rejected(self, producer: TransactionalProducer) -> list[BreachRecord]:
        """The records at fault: those whose delivery failed, the largest first, else the one that the client did not take.

        A batch fails as a whole, and the broker does not tell because of which of its records.
        """
        failed = set(producer.failed_keys())
        if failed:
            found = [record for record in self._handed_over if event_key(record.ticket_id) in failed]
            return sorted(found, key=lambda record: len(record.payload), reverse=True)
        return self._handed_over[-1:] if self._step == "begun" else []
