"""One takeover: one producer, one transaction, every step of exactly-once in its order (SPEC 5.6, 7.2).

The position is stored in Kafka, in the same transaction as its events; Postgres holds only a copy. So no event is ever
visible without its position. The steps, and the reasons for their order:

- ``locked``: this publisher holds the advisory lock in Postgres. The lock serves liveness alone: without it two
  publishers would fence each other endlessly, yet double nothing. The copy of the position is read now, before any
  request to Kafka.
- ``connected``: a new producer has its connection, and both topics still exist.
- ``fenced``: ``init_transactions`` has fenced every earlier publisher, and the transaction that one left open is
  committed or aborted. A position read before this could not be trusted: a paused publisher might still commit. Then
  the lock is checked again. A transaction of this publisher that the broker never ended is aborted here, if nothing of
  it is visible (``hanging.py``); then this takeover ends, and the next one continues.
- ``progress_read``: the position is read to the true end of its topic.
- ``rows_read``: the number of records is read after the position, then the records themselves. Both numbers only grow,
  so in this order a contradiction is never a race; any contradiction ends here, with nothing sent (``consistency.py``).
- ``begun``, ``produced``, ``flushed``: one transaction holds the events and the new position. Events are queued step by
  step, as many as can be delivered in time (``pace.py``); the position comes last and covers exactly those, so the rest
  waits for the next transaction. Any exception of ``produce`` ends the takeover: a commit after it would succeed,
  without the record. Every delivery must have succeeded.
- ``committed``: the commit has a timeout, which may be finite because this producer is never used again.
- ``advanced``: the copy in Postgres follows.

One transaction per producer: librdkafka ends transactions by the older protocol, in which a late commit of an earlier
transaction can end a later one of the same producer. An exception anywhere leaves the outcome unknown, whatever its
text: the same timeout was seen with the transaction committed and aborted. The producer is discarded without abort or
close, and the next takeover reads the outcome back. ``relay.py`` decides when to take over and how often.
"""

import logging
from dataclasses import dataclass, field

from sla_pipeline.cycle import CycleTotals, OnStep
from sla_pipeline.errors import KafkaSetupError, KafkaUnavailable, PublisherFenced
from sla_pipeline.event import event_headers, event_key
from sla_pipeline.kafka.clients import TransactionalProducer
from sla_pipeline.kafka.consistency import require_agreement, require_progress, waiting_records
from sla_pipeline.kafka.deadline import Deadline
from sla_pipeline.kafka.faults import ErrorContext, translate
from sla_pipeline.kafka.hanging import Hanging, abort_hanging, find_hanging, require_invisible
from sla_pipeline.kafka.pace import Pace, fitting_records, size_bytes
from sla_pipeline.kafka.progress import PROGRESS_KEY, PROGRESS_PARTITION, Progress, ProgressReader
from sla_pipeline.kafka.refusals import ReplicasMissing, fence
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import EventTopic, TopicChecker
from sla_pipeline.outbox import BreachRecord, Outbox

__all__ = ["STEPS", "Takeover"]

log = logging.getLogger(__name__)

# Activity after each step, for the message of an error.
_DOING_AFTER = {
    "": "taking the publisher's lock",
    "locked": "connecting",
    "connected": "fencing earlier publishers",
    "fenced": "reading the progress topic",
    "progress_read": "reading the records to publish",
    "rows_read": "beginning a transaction",
    "begun": "queueing events",
    "produced": "delivering events",
    "flushed": "committing a transaction",
    "committed": "noting the new position in Postgres",
    "advanced": "ending a takeover",
}
STEPS = tuple(step for step in _DOING_AFTER if step)
"""Names of the steps, in order, as ``on_step`` receives them."""

# Bounds each call: a healthy broker answers in milliseconds, and two slow calls leave time for a third.
_CALL_SECONDS = 8.0
# Bounds the check for the reason of a refusal, on top of the attempt's own time; a healthy broker needs milliseconds.
_REFUSAL_SECONDS = 2.0
# Least time left for aborting a hanging transaction: the abort and the repetition of its events take under a second on
# a healthy broker.
_ABORT_SECONDS = 5.0
# Bound delivering, as a share of the time left and in seconds: the commit and the new position must fit into the rest,
# and the whole transaction into transaction.timeout.ms (30 s).
_DELIVERY_SHARE = 0.6
_DELIVERY_SECONDS = 12.0


@dataclass(slots=True)
class Takeover:
    """One attempt to publish.

    ``topics`` and ``reader`` belong to the relay, which keeps them between the takeovers of a cycle; everything else
    ends with this object. ``event_topic`` is the result of this cycle's check; ``aborted_before`` the hanging
    transaction that the previous takeover aborted. ``aborted`` is the one that this takeover aborted: then it published
    nothing, and another takeover must follow.
    """

    settings: KafkaSettings
    outbox: Outbox
    topics: TopicChecker
    event_topic: EventTopic
    reader: ProgressReader
    deadline: Deadline
    run_id: str
    on_step: OnStep
    transaction_limit: int
    aborted_before: Hanging | None = None
    aborted: Hanging | None = field(default=None, init=False)
    _step: str = field(default="", init=False)
    _doing: str = field(default=_DOING_AFTER[""], init=False)
    _producer: TransactionalProducer | None = field(default=None, init=False)
    _queued: list[BreachRecord] = field(default_factory=list, init=False)
    _delivered_count: int = field(default=0, init=False)

    @property
    def smaller_limit(self) -> int:
        """Most records for the next attempt of this cycle: half of those delivered by one that was too slow.

        0 when none was delivered, or when the attempt failed elsewhere: a smaller attempt would not help.
        """
        return self._delivered_count // 2 if self._step in ("begun", "produced") else 0

    def run(self, totals: CycleTotals) -> None:
        """Publish up to ``transaction_limit`` waiting records, and count them in ``totals`` once they are committed.

        Raise our own errors (``faults.translate``), or any other unchanged. After any error the producer is discarded
        and the reader closed.
        """
        ended_well = False
        try:
            self._run(totals)
            ended_well = True
        except Exception as error:
            own_error = self._translated(error)
            if self._step in ("begun", "produced") and isinstance(own_error, KafkaSetupError | KafkaUnavailable):
                own_error = self._refusal() or own_error
            if own_error is None or own_error is error:
                raise
            raise own_error from error
        finally:
            # An interruption (a BaseException) passes through here too, unchanged.
            if self._producer is not None:
                self._producer.drop()
            if not ended_well:
                self.reader.close()

    def _run(self, totals: CycleTotals) -> None:
        published_before = self.outbox.published_seq()
        self._end_step("locked")

        producer = self._connect()
        self._end_step("connected")

        fence(self.settings, producer, self._timeout())
        self._require_lock()
        self._end_step("fenced")

        self._abort_hanging(producer)
        if self.aborted is not None:
            return

        progress = require_progress(self.reader.read(self.deadline), self.settings.progress_topic)
        self._end_step("progress_read")

        waiting = self._waiting(progress, published_before)
        self._end_step("rows_read")

        records = self._transact(producer, waiting) if waiting else []
        if records:
            totals.published_count += len(records)
            totals.transaction_count += 1
            self._end_step("committed")
        elif progress.seq > published_before:
            log.info(
                "run %s had published up to sequence %d, which was not recorded in Postgres yet",
                progress.run,
                progress.seq,
            )

        self.outbox.advance(records[-1].seq if records else progress.seq)
        self._end_step("advanced")

    def _connect(self) -> TransactionalProducer:
        self._producer = TransactionalProducer(self.settings, largest_batch_bytes=self.event_topic.max_message_bytes)
        self._producer.connect(self._timeout())
        return self._producer

    def _abort_hanging(self, producer: TransactionalProducer) -> None:
        hanging = find_hanging(self.settings, self.topics, self.event_topic, self.deadline)
        if hanging is None:
            return
        if self.aborted_before is not None or self.deadline.remaining_seconds() < _ABORT_SECONDS:
            # An abort needs time to publish again: until then, Postgres may hold a position that Kafka lacks.
            raise KafkaUnavailable(
                f"a transaction in {hanging.where} on Kafka at {self.settings.bootstrap_servers} has no end, and could "
                "not be aborted in time; the next cycle tries again"
            )
        progress = require_progress(self.reader.read(self.deadline, behind_fence=False), self.settings.progress_topic)
        require_invisible(self.settings, self.event_topic, hanging, progress, self.deadline)
        log.warning(
            "the broker never ended a transaction in %s (KAFKA-20734); nothing of it is visible, so it is aborted, "
            "and published again",
            hanging.where,
        )
        abort_hanging(producer, hanging, self.deadline)
        self.aborted = hanging

    def _require_lock(self) -> None:
        if not self.outbox.holds_lock():
            raise PublisherFenced(
                "the relay's lock in Postgres was lost while taking over, because its session was cut; another "
                "publisher may have taken over"
            )

    def _waiting(self, progress: Progress, published_before: int) -> list[BreachRecord]:
        last_seq = self.outbox.last_seq()
        published_before = self._without_aborted(progress, published_before)
        require_agreement(progress, published_before=published_before, last_seq=last_seq)
        # The published row is read too, to compare its digest.
        from_seq, limit = (progress.seq, self.transaction_limit + 1) if progress.seq else (1, self.transaction_limit)
        return waiting_records(progress, self.outbox.records_from(from_seq, limit), last_seq=last_seq)

    def _without_aborted(self, progress: Progress, published_before: int) -> int:
        """Return the copy of the position without the transaction that the previous takeover aborted.

        Its commit may have been answered, and recorded in Postgres.
        """
        aborted = self.aborted_before.progress if self.aborted_before else None
        if aborted and aborted.first == progress.seq + 1 and progress.seq < published_before <= aborted.seq:
            return progress.seq
        return published_before

    def _transact(self, producer: TransactionalProducer, waiting: list[BreachRecord]) -> list[BreachRecord]:
        """Publish the first of ``waiting``, as many as can be delivered in time, and return them."""
        producer.begin()
        self._end_step("begun")

        records = self._queue(producer, waiting)
        progress = Progress.of(records, self.run_id)
        producer.produce(self.settings.progress_topic, progress.to_json(), PROGRESS_KEY, partition=PROGRESS_PARTITION)
        self._end_step("produced")

        producer.deliver(self._timeout())
        self._end_step("flushed")

        producer.commit(self._timeout())
        return records

    def _queue(self, producer: TransactionalProducer, waiting: list[BreachRecord]) -> list[BreachRecord]:
        """Queue records step by step, each after the delivery of the one before; return the records of all steps."""
        pace = Pace(min(_DELIVERY_SECONDS, self.deadline.remaining_seconds() * _DELIVERY_SHARE))
        queue = {"queue_messages": self.settings.queue_messages, "queue_bytes": self.settings.queue_bytes}
        count = 0
        while step := fitting_records(waiting[count:], pace, **queue):
            pace.begin_step()
            for record in step:
                self._queued.append(record)
                headers = event_headers(correlation_id=record.correlation_id, outbox_seq=record.seq)
                producer.produce(self.settings.topic, record.payload, event_key(record.ticket_id), headers=headers)
            count += len(step)
            if count == len(waiting):
                # The last step is delivered together with the progress record.
                break
            self._doing = "delivering events"
            producer.deliver(pace.remaining_seconds)
            self._doing = _DOING_AFTER["begun"]
            self._delivered_count = count
            pace.end_step(len(step), sum(map(size_bytes, step)))
        return waiting[:count]

    def _timeout(self) -> float:
        return self.deadline.timeout_seconds(_CALL_SECONDS)

    def _end_step(self, step: str) -> None:
        self._step, self._doing = step, _DOING_AFTER[step]
        self.on_step(step)

    def _translated(self, error: Exception) -> Exception | None:
        """Return our error for ``error``, while the producer can still report its own."""
        producer, doing = self._producer, self._doing
        if producer is None:
            return translate(error, ErrorContext(self.settings, doing))
        producer.drain_callbacks()
        return translate(
            error,
            ErrorContext(
                self.settings,
                doing,
                reported=producer.reported_error,
                rejected=self._rejected(producer),
                transaction_open=self._step in ("begun", "produced", "flushed"),
                throttled_seconds=producer.reports.throttled_seconds,
                time_limits=self.event_topic.time_limits,
            ),
        )

    def _refusal(self) -> KafkaSetupError | ReplicasMissing | None:
        """Return the fault that the topics' check finds, after the broker took no events.

        The client retries some refusals and reports them as a timeout only.
        """
        try:
            self.topics.check(Deadline(_REFUSAL_SECONDS))
        except (KafkaSetupError, ReplicasMissing) as found:
            return found
        except KafkaUnavailable:
            pass
        return None

    def _rejected(self, producer: TransactionalProducer) -> list[BreachRecord]:
        """Return the records at fault: those not delivered, the largest first, else the one that the client refused.

        A batch fails as a whole, and the broker does not name the record that caused it.
        """
        failed = set(producer.failed_keys())
        if failed:
            found = [record for record in self._queued if event_key(record.ticket_id) in failed]
            return sorted(found, key=lambda record: len(record.payload), reverse=True)
        return self._queued[-1:] if self._step == "begun" else []
