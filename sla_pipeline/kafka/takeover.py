"""One takeover: one producer, one transaction, every step of exactly-once in its order (SPEC 5.6, 7.2).

The position is kept in Kafka, in the same transaction as the events it speaks of; Postgres holds only a copy of it. So
there is no moment in which an event is out and its position is not. The steps, and why they come in this order:

- ``locked``: the advisory lock in Postgres is ours. For liveness alone: without it two publishers would fence each
  other for ever, yet double nothing. The copy of the position is read now, before Kafka is touched.
- ``connected``: a new producer has its connection, and both topics are still there.
- ``fenced``: ``init_transactions`` has shut out every publisher before us, and what one had left open is committed or
  aborted. No position read before this could be trusted: a paused publisher might still commit. Then the lock is looked
  at again. A transaction of ours that the broker never ended is aborted here, if nothing of it is visible
  (``hanging.py``); then this takeover ends, and the next one goes on.
- ``progress_read``: the position, read to the true end of its topic.
- ``rows_read``: how many records exist, read after the position, and the records themselves. Both numbers only grow, so
  in this order a contradiction is never a race; any contradiction ends here, with nothing sent (``consistency.py``).
- ``begun``, ``produced``, ``flushed``: one transaction with the events and the new position. Events are handed over
  step by step, as many as can be delivered in time (``pace.py``); the position comes last and covers exactly those, so
  the rest waits for the next transaction. Any raise of ``produce`` ends the takeover: a commit after it would succeed,
  without the record. Every delivery must have succeeded.
- ``committed``: with a time-out, which may be finite because this producer is never asked again.
- ``advanced``: the copy in Postgres follows.

One transaction for one producer: librdkafka ends transactions by the older protocol, in which a late commit of an
earlier transaction can end a later one of the same producer. An exception anywhere leaves the outcome unknown, whatever
it says: the same time-out was seen with the transaction committed and aborted. The producer is let go without abort or
close, and the next takeover reads back what became of it. What does not belong here: when to take over and how often
(``relay.py``), and mending a contradiction (``recovery.py``).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, takewhile

from sla_pipeline.cycle import CycleTotals, OnStep
from sla_pipeline.errors import KafkaSetupError, KafkaUnavailable, PublisherFenced
from sla_pipeline.event import event_headers, event_key
from sla_pipeline.kafka.clients import TransactionalProducer
from sla_pipeline.kafka.consistency import require_agreement, require_progress, waiting_records
from sla_pipeline.kafka.deadline import Deadline
from sla_pipeline.kafka.faults import Scene, translate
from sla_pipeline.kafka.hanging import Hanging, abort_hanging, find_hanging, require_invisible
from sla_pipeline.kafka.pace import Pace
from sla_pipeline.kafka.progress import PROGRESS_KEY, PROGRESS_PARTITION, Progress, ProgressReader
from sla_pipeline.kafka.refusals import ReplicasMissing, fence
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import EventTopic, TopicChecker
from sla_pipeline.outbox import BreachRecord, Outbox

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

# no single call waits longer; what is healthy answers in milliseconds, and after two limping calls there is time for a
# third
_CALL_SECONDS = 8.0
# a look for the reason of a refusal, on top of the attempt's own time; a healthy broker answers in milliseconds
_REFUSAL_SECONDS = 2.0
# to abort a hanging transaction and to publish its events again takes under a second on a healthy broker
_ABORT_SECONDS = 5.0
# delivering gets this share of what is left, and no more than this: the commit and the next position must fit into the
# rest, and the whole transaction into transaction.timeout.ms (30 s)
_DELIVERY_SHARE = 0.6
_DELIVERY_SECONDS = 12.0
# key, headers and the client's own bookkeeping of one record, generously
_RECORD_OVERHEAD_BYTES = 1_024


def _size_bytes(record: BreachRecord) -> int:
    return len(record.payload) + _RECORD_OVERHEAD_BYTES


def fitting_records(
    records: Sequence[BreachRecord], pace: Pace, *, queue_messages: int, queue_bytes: int
) -> list[BreachRecord]:
    """The first of ``records`` that ``pace`` allows in one step and the client's queue holds along with a progress record.

    A full queue would end this takeover, and every later one too, so a step is never larger than the queue; a record
    that does not fit into it even alone is tried as the first of a transaction only, which it then ends. None means
    that the transaction ends here.
    """
    within = records[: max(1, min(pace.most_records, queue_messages - 1))]
    sizes = accumulate(map(_size_bytes, within))
    # half of the queue's bytes: librdkafka's byte accounting is not exactly known
    fitting = takewhile(lambda size: pace.allows(size) and (size <= queue_bytes // 2 or pace.is_first_step), sizes)
    count = sum(1 for _ in fitting)
    return list(within[:count])


@dataclass(slots=True)
class Takeover:
    """One attempt. ``topics`` and ``reader`` are the relay's, kept between the takeovers of a cycle; all else ends with this object.

    ``event_topic`` is what this cycle's check of the topics found; ``aborted_before`` the hanging transaction that the
    takeover before this one gave up. ``aborted`` is the one that this takeover gave up: then it published nothing, and
    another one must follow.
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
    _handed_over: list[BreachRecord] = field(default_factory=list, init=False)
    _delivered_count: int = field(default=0, init=False)

    @property
    def smaller_limit(self) -> int:
        """Most records for the next attempt of this cycle, after this one was too slow in delivering: half of what had arrived by then.

        0 when nothing had, or when the attempt failed elsewhere: then another attempt at once would be no smaller.
        """
        return self._delivered_count // 2 if self._step in ("begun", "produced") else 0

    def run(self, totals: CycleTotals) -> None:
        """Publishes up to ``transaction_limit`` waiting records and counts them in ``totals`` once they are committed.

        Raises our own errors (``faults.translate``), or any other as it is. Whatever is raised, the producer is gone
        and the reader closed.
        """
        ended_well = False
        try:
            self._run(totals)
            ended_well = True
        except Exception as error:
            ours = self._translated(error)
            if self._step in ("begun", "produced") and isinstance(ours, KafkaSetupError | KafkaUnavailable):
                ours = self._refusal() or ours
            if ours is None or ours is error:
                raise
            raise ours from error
        finally:
            # an interruption (a BaseException) passes through here as well, untouched
            if self._producer is not None:
                self._producer.drop()
            if not ended_well:
                self.reader.close()

    def _run(self, totals: CycleTotals) -> None:
        published_before = self.outbox.published_seq()
        self._did("locked")

        producer = self._connect()
        self._did("connected")

        fence(self.settings, producer, self._timeout())
        self._require_lock()
        self._did("fenced")

        self._abort_hanging(producer)
        if self.aborted is not None:
            return

        progress = require_progress(self.reader.read(self.deadline), self.settings.progress_topic)
        self._did("progress_read")

        waiting = self._waiting(progress, published_before)
        self._did("rows_read")

        records = self._transact(producer, waiting) if waiting else []
        if records:
            totals.published_count += len(records)
            totals.transaction_count += 1
            self._did("committed")
        elif progress.seq > published_before:
            _log.info(
                "run %s had published up to sequence %d, which Postgres did not know yet", progress.run, progress.seq
            )

        self.outbox.advance(records[-1].seq if records else progress.seq)
        self._did("advanced")

    def _connect(self) -> TransactionalProducer:
        self._producer = TransactionalProducer(self.settings, largest_batch_bytes=self.event_topic.max_message_bytes)
        self._producer.connect(self._timeout())
        return self._producer

    def _abort_hanging(self, producer: TransactionalProducer) -> None:
        hanging = find_hanging(self.settings, self.topics, self.event_topic, self.deadline)
        if hanging is None:
            return
        if self.aborted_before is not None or self.deadline.remaining_seconds() < _ABORT_SECONDS:
            # whoever aborts must also publish again: until then, Postgres may hold a position that Kafka does not know
            raise KafkaUnavailable(
                f"a transaction in {hanging.where} on Kafka at {self.settings.bootstrap_servers} has no end, and could "
                "not be aborted in time; the next cycle tries again"
            )
        progress = require_progress(self.reader.read(self.deadline, behind_fence=False), self.settings.progress_topic)
        require_invisible(self.settings, self.event_topic, hanging, progress, self.deadline)
        _log.warning(
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
                "publisher may have gone on"
            )

    def _waiting(self, progress: Progress, published_before: int) -> list[BreachRecord]:
        last_seq = self.outbox.last_seq()
        published_before = self._without_aborted(progress, published_before)
        require_agreement(progress, published_before=published_before, last_seq=last_seq)
        # the published row too, to know it again
        from_seq, limit = (progress.seq, self.transaction_limit + 1) if progress.seq else (1, self.transaction_limit)
        return waiting_records(progress, self.outbox.records_from(from_seq, limit), last_seq=last_seq)

    def _without_aborted(self, progress: Progress, published_before: int) -> int:
        """The copy of the position, less what the takeover before this one aborted: its commit may have been
        answered, and noted.
        """
        given_up = self.aborted_before.progress if self.aborted_before else None
        if given_up and given_up.first == progress.seq + 1 and progress.seq < published_before <= given_up.seq:
            return progress.seq
        return published_before

    def _transact(self, producer: TransactionalProducer, waiting: list[BreachRecord]) -> list[BreachRecord]:
        """Publishes the first of ``waiting``, as many as can be delivered in time, and returns them."""
        producer.begin()
        self._did("begun")

        records = self._hand_over(producer, waiting)
        progress = Progress.of(records, self.run_id)
        producer.produce(self.settings.progress_topic, progress.to_json(), PROGRESS_KEY, partition=PROGRESS_PARTITION)
        self._did("produced")

        producer.deliver(self._timeout())
        self._did("flushed")

        producer.commit(self._timeout())
        return records

    def _hand_over(self, producer: TransactionalProducer, waiting: list[BreachRecord]) -> list[BreachRecord]:
        """Hands over step by step, each after the one before has arrived; returns the records of all steps."""
        pace = Pace(min(_DELIVERY_SECONDS, self.deadline.remaining_seconds() * _DELIVERY_SHARE))
        queue = {"queue_messages": self.settings.queue_messages, "queue_bytes": self.settings.queue_bytes}
        count = 0
        while step := fitting_records(waiting[count:], pace, **queue):
            pace.begin_step()
            for record in step:
                self._handed_over.append(record)
                headers = event_headers(correlation_id=record.correlation_id, outbox_seq=record.seq)
                producer.produce(self.settings.topic, record.payload, event_key(record.ticket_id), headers=headers)
            count += len(step)
            if count == len(waiting):
                # the last step is waited for along with the progress record
                break
            self._doing = "delivering events"
            producer.deliver(pace.remaining_seconds)
            self._doing = _DOING_AFTER["begun"]
            self._delivered_count = count
            pace.end_step(len(step), sum(map(_size_bytes, step)))
        return waiting[:count]

    def _timeout(self) -> float:
        return self.deadline.timeout_seconds(_CALL_SECONDS)

    def _did(self, step: str) -> None:
        self._step, self._doing = step, _DOING_AFTER[step]
        self.on_step(step)

    def _translated(self, error: Exception) -> Exception | None:
        """Our error for ``error``, made while the producer is still there to tell what it knows."""
        producer, doing = self._producer, self._doing
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
                throttled_seconds=producer.reports.throttled_seconds,
                time_limits=self.event_topic.time_limits,
            ),
        )

    def _refusal(self) -> KafkaSetupError | ReplicasMissing | None:
        """What the topics' check finds now, after events were not taken: the client reports a refusal that it tries
        again as a time-out.
        """
        try:
            self.topics.check(Deadline(_REFUSAL_SECONDS))
        except (KafkaSetupError, ReplicasMissing) as found:
            return found
        except KafkaUnavailable:
            pass
        return None

    def _rejected(self, producer: TransactionalProducer) -> list[BreachRecord]:
        """The records at fault: those whose delivery failed, the largest first, else the one that the client did not take.

        A batch fails as a whole, and the broker does not tell because of which of its records.
        """
        failed = set(producer.failed_keys())
        if failed:
            found = [record for record in self._handed_over if event_key(record.ticket_id) in failed]
            return sorted(found, key=lambda record: len(record.payload), reverse=True)
        return self._handed_over[-1:] if self._step == "begun" else []
