"""Diagnose and repair contradictions that the relay refuses to guess about, from the events on the topic.

Runs only on a person's request (``sla-pipeline recover``).

Three states can be repaired, alone or together:

- *The progress record is lost* (its topic was deleted, emptied, re-created, or restored from an older copy). Events are
  published in the order of their sequence, so the last sequence on the topic is the position; where retention has
  removed that event, Postgres's copy is. The repair writes one progress record, without events. It sends nothing, and
  changes nothing in Postgres but its copy of the position.
- *Postgres was rewound* (restored from a backup, or failed over to a replica that lagged), and cycles may have run
  since. The topic then holds events after the last record that both share, and Postgres lacks their records. The repair
  writes those records back from their events, under their old sequences, byte for byte; it drops the records made since
  for the same tickets, because their events are published; and it puts the remaining new ones after them, where the
  next cycle publishes them. So no ticket is sent twice and none is left out. Flags on tickets are not changed: where
  the backup lost one, the next cycle sets it again, finds the record, and sends nothing. The topic is read a second
  time for the records; unless the second reading matches the first exactly, nothing is changed.
- *Events are missing*: records that both positions count as published have no event, and retention does not explain it
  (the event topic was deleted and re-created, or a broker lost acknowledged records). The repair publishes exactly
  these again (``republish.py``). It comes last: the two repairs above first determine which records are published.

Nothing is repaired where the remaining data do not determine what was published: events of the time in question have
expired, a record was deleted from the middle, the topic holds a sequence or a ticket twice. Then the diagnosis lists
the contradictions, and a person must decide by hand.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

from sla_pipeline.errors import FailClosed, PublisherBusy, PublisherFenced
from sla_pipeline.event import event_key
from sla_pipeline.kafka.deadline import Deadline
from sla_pipeline.kafka.events import OnProgress
from sla_pipeline.kafka.progress import RECOVERY, Progress, ProgressReader, record_digest, write_progress
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.outbox import Outbox
from sla_pipeline.recovery.diagnosis import Diagnosis, State, compare
from sla_pipeline.recovery.outbox_repair import RepairableOutbox
from sla_pipeline.recovery.republish import republish
from sla_pipeline.recovery.topic_contents import PublishedRecord, TopicContents, read_records, scan_topic

__all__ = ["diagnose", "repair"]

# Bounds one diagnosis or repair: reading a topic of some million events takes a minute or two; a person is waiting, and
# no transaction is open meanwhile.
_ATTEMPT_SECONDS = 1_800.0
_LOCK_SECONDS = 5.0
_LOCK_POLL_SECONDS = 0.1
# Interval of the queries that keep the session alive: the server ends an idle one after 25 s, and with it the lock.
_KEEPALIVE_SECONDS = 5.0
# Bounds the records read from Postgres at a time.
_PAGE = 10_000


def diagnose(settings: KafkaSettings, outbox: Outbox, *, on_progress: OnProgress | None = None) -> Diagnosis:
    """Compare topic, progress record and Postgres; change nothing.

    Holds the relay's lock meanwhile, so that no publisher changes the data. Raise ``PublisherBusy``,
    ``KafkaUnavailable``, ``KafkaSetupError``, or what the outbox raises.
    """
    with _locked(outbox):
        return _diagnosed(settings, outbox, Deadline(_ATTEMPT_SECONDS), behind_fence=False, on_progress=on_progress)[0]


def repair(
    settings: KafkaSettings,
    outbox: RepairableOutbox,
    *,
    run_id: str,
    confirmed: Diagnosis | None = None,
    on_progress: OnProgress | None = None,
) -> Diagnosis:
    """Fence every publisher, diagnose again, repair, and return the diagnosis. After a crash, run it again.

    ``confirmed`` is the diagnosis that a person has confirmed; where the new one plans another repair, nothing is done.
    ``run_id`` is stored in the progress record. Postgres is repaired first, in one transaction; the progress record
    follows. Missing events are published again in a repair of their own, when everything else agrees. Raise
    ``FailClosed`` with the reasons when nothing can be decided or the topic changes while it is read, and what
    ``diagnose`` raises.
    """
    deadline = Deadline(_ATTEMPT_SECONDS)
    found: list[Diagnosis] = []

    def repair_behind_fence() -> Progress | None:
        """Diagnose and repair behind the fence; return the progress record to write."""
        diagnosis, topic = _diagnosed(settings, outbox, deadline, behind_fence=True, on_progress=on_progress)
        found.append(diagnosis)
        if diagnosis.state is State.UNDECIDABLE:
            raise FailClosed(f"nothing was changed: {'; '.join(diagnosis.reasons)}. {RECOVERY}")
        if confirmed is not None and diagnosis.plan != confirmed.plan:
            raise FailClosed(
                "the situation has changed since it was diagnosed, and nothing was changed; run `sla-pipeline "
                "recover` again"
            )
        if diagnosis.state is State.DATABASE_REWOUND:
            lost = {seq: digest for seq, digest in topic.digests.items() if seq > diagnosis.common_seq}
            outbox.write_back(
                _while_locked(outbox, read_records(settings, lost, on_progress=on_progress)),
                common_seq=diagnosis.common_seq,
                last_seq=diagnosis.position,
            )
        outbox.advance(diagnosis.position)
        digest = record_digest(outbox.records_from(diagnosis.position, 1)[0]) if diagnosis.position else ""
        progress = diagnosis.progress
        if (
            progress is not None
            and (progress.seq, progress.digest) == (diagnosis.position, digest)
            and not diagnosis.foreign_progress
        ):
            return None
        return Progress.without_events(diagnosis.position, digest, run_id)

    with _locked(outbox):
        write_progress(settings, deadline, repair_behind_fence)
        (diagnosis,) = found
        if diagnosis.state is State.EVENTS_MISSING and diagnosis.progress is not None:
            republish(
                settings,
                outbox,
                diagnosis.missing,
                last_progress=diagnosis.progress,
                run_id=run_id,
                deadline=deadline,
                on_progress=on_progress,
            )
    return diagnosis


def _diagnosed(
    settings: KafkaSettings, outbox: Outbox, deadline: Deadline, *, behind_fence: bool, on_progress: OnProgress | None
) -> tuple[Diagnosis, TopicContents]:
    reader = ProgressReader(settings)
    try:
        progress, foreign_progress = reader.read_with_foreign(deadline, behind_fence=behind_fence)
    finally:
        reader.close()
    topic = scan_topic(settings, on_progress=on_progress)
    _require_lock(outbox)
    published_seq, last_seq = outbox.published_seq(), outbox.last_seq()
    # Where the topic has lost its oldest events, records older than the rest prove nothing.
    from_seq = max(topic.lowest_seq or published_seq, 1) if topic.expired_below else 1
    rows: dict[int, str] = {}
    elsewhere: dict[int, int] = {}
    while page := outbox.records_from(from_seq, _PAGE):
        for record in page:
            if record.seq > last_seq:
                continue
            rows[record.seq] = record_digest(record)
            if (
                record.seq not in topic.digests
                and (other := topic.tickets.get(event_key(record.ticket_id))) is not None
            ):
                elsewhere[record.seq] = other
        from_seq = page[-1].seq + 1
    diagnosis = compare(
        topic, rows, last_seq=last_seq, published_seq=published_seq, progress=progress, elsewhere=elsewhere
    )
    if foreign_progress is not None:
        # Publishing stops at a foreign record, whatever else agrees; a record of this package behind it resumes it.
        state = State.PROGRESS_LOST if diagnosis.state in (State.AGREED, State.EVENTS_MISSING) else diagnosis.state
        diagnosis = replace(diagnosis, state=state, foreign_progress=str(foreign_progress).partition(". ")[0])
    return diagnosis, topic


def _while_locked(outbox: Outbox, records: Iterator[PublishedRecord]) -> Iterator[PublishedRecord]:
    """Yield the records; check the lock after the last one, before the caller writes them."""
    yield from records
    _require_lock(outbox)


def _require_lock(outbox: Outbox) -> None:
    if not outbox.holds_lock():
        raise PublisherFenced("the relay's lock in Postgres was lost meanwhile; nothing was changed, run it again")


@contextlib.contextmanager
def _locked(outbox: Outbox) -> Iterator[None]:
    deadline = Deadline(_LOCK_SECONDS)
    while not outbox.try_lock():
        if not deadline.remaining_seconds():
            raise PublisherBusy(
                "a publisher holds the relay's lock in Postgres; stop the schedule, or try again in a moment"
            )
        time.sleep(_LOCK_POLL_SECONDS)
    try:
        with _kept_alive(outbox):
            yield
    finally:
        with contextlib.suppress(Exception):
            # A session that was cut has released it already.
            outbox.unlock()


@contextlib.contextmanager
def _kept_alive(outbox: Outbox) -> Iterator[None]:
    """Query the lock's session from a thread, so that the server does not end it as idle.

    Reading the topic may wait for a minute.
    """
    ended = threading.Event()

    def keep() -> None:
        # The next _require_lock detects a lost lock.
        with contextlib.suppress(Exception):
            while not ended.wait(_KEEPALIVE_SECONDS):
                outbox.holds_lock()

    thread = threading.Thread(target=keep, name="recovery-keepalive", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
