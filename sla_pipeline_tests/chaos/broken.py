"""Three wrong builds of the product, as patches for the harness's workers.

Each omits one rule. No test of a healthy system would show its absence; the harness must detect it. The product itself
has no switch for this.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import cast
from unittest import mock

import psycopg
from psycopg.rows import args_row

from sla_pipeline.breach import Breach, BreachKind, judge
from sla_pipeline.cycle import OnStep
from sla_pipeline.kafka import relay
from sla_pipeline.kafka.deadline import Deadline
from sla_pipeline.kafka.progress import Progress, ProgressReader, record_digest
from sla_pipeline.kafka.takeover import Takeover
from sla_pipeline.outbox import Outbox
from sla_pipeline.postgres import marking
from sla_pipeline.postgres.tickets import LockedTicket

__all__ = ["Build", "install"]


class Build(StrEnum):
    """Build that the workers run."""

    SOUND = "sound"
    PLAIN_OUTBOX = "plain-outbox"
    NO_RECHECK = "no-recheck"
    EARLY_PROGRESS = "early-progress"


def install(build: Build) -> None:
    """Patch this process to run ``build``."""
    for target, name, replacement in _PATCHES[build]:
        mock.patch.object(target, name, replacement).start()


class _PositionFromPostgres:
    """A plain outbox: the position comes from Postgres, which is updated after the events are published."""

    def __init__(self, outbox: Outbox, reader: ProgressReader) -> None:
        self._outbox = outbox
        self.close = reader.close

    def read(self, deadline: Deadline) -> Progress:
        seq = self._outbox.published_seq()
        return Progress.without_events(
            seq, record_digest(self._outbox.records_from(seq, 1)[0]) if seq else "", "plain outbox"
        )


def _plain_outbox(*, outbox: Outbox, reader: ProgressReader, **others: object) -> Takeover:
    return _takeover(outbox=outbox, reader=_PositionFromPostgres(outbox, reader), **others)


class _PositionReadEarly:
    """Reader of the position before earlier publishers are fenced: one of them may still commit the same events."""

    def __init__(self, reader: ProgressReader, deadline: Deadline, on_step: OnStep) -> None:
        self._reader = reader
        self._deadline = deadline
        self._on_step = on_step
        self._progress: Progress | None = None
        self.close = reader.close

    def on_step(self, name: str) -> None:
        if name != "progress_read":
            self._on_step(name)
        if name == "connected":
            self._progress = self._reader.read(self._deadline, behind_fence=False)
            self._on_step("progress_read")

    def read(self, deadline: Deadline) -> Progress | None:
        return self._progress


def _early_progress(*, reader: ProgressReader, deadline: Deadline, on_step: OnStep, **others: object) -> Takeover:
    early = _PositionReadEarly(reader, deadline, on_step)
    return _takeover(reader=early, deadline=deadline, on_step=early.on_step, **others)


def _takeover(**values: object) -> Takeover:
    return cast(Callable[..., Takeover], Takeover)(**values)


# Every claimed and unlocked ticket. A reply since the claim is ignored.
_LOCK_BATCH_AS_CLAIMED = """
select id, number, tenant_id, queue_id, requester_user_id, assignee_user_id, priority,
    status, sla_breached, first_response_due_at, first_response_at, resolution_due_at, resolved_at,
    false as recorded, '' as row_version
from support.tickets where id = any(%(ids)s::uuid[]) and not sla_breached
order by first_response_due_at, id
for no key update skip locked
"""


def _lock_batch_as_claimed(
    connection: psycopg.Connection, ids: Sequence[str], *, now_utc: datetime, tenant_id: str | None
) -> list[LockedTicket]:
    with connection.cursor(row_factory=args_row(LockedTicket)) as cursor:
        return cursor.execute(_LOCK_BATCH_AS_CLAIMED, {"ids": list(ids)}).fetchall()


def _judge_as_claimed(ticket: LockedTicket, now_utc: datetime) -> Breach | None:
    """Return the rule's breach; where it no longer applies, the breach at the time of the claim."""
    first_due_at, resolution_due_at = ticket.first_response_due_at, ticket.resolution_due_at
    resolution_passed = resolution_due_at is not None and resolution_due_at < now_utc
    kind = BreachKind.RESOLUTION if resolution_passed else BreachKind.FIRST_RESPONSE
    due_at = (resolution_due_at if resolution_passed else first_due_at) or now_utc
    return judge(ticket, now_utc) or Breach(kind, due_at)


_PATCHES: dict[Build, list[tuple[object, str, object]]] = {
    Build.SOUND: [],
    Build.PLAIN_OUTBOX: [(relay, "Takeover", _plain_outbox)],
    Build.EARLY_PROGRESS: [(relay, "Takeover", _early_progress)],
    Build.NO_RECHECK: [(marking, "lock_batch", _lock_batch_as_claimed), (marking, "judge", _judge_as_claimed)],
}
