"""The one change that recovery makes to the outbox: published records that Postgres lost are written back under their old sequences.

What belongs here: the statements of ``kafka.recovery.RepairableOutbox``. What does not: when they are called for. Needs the owner's
login: the worker may not delete a record.
"""

from collections.abc import Sequence

from sla_pipeline.cycle import PublishedRecord
from sla_pipeline.postgres.outbox import PostgresOutbox
from sla_pipeline.postgres.session import PostgresSettings, translated_errors

__all__ = ["RepairablePostgresOutbox"]

# no batch is marked from here to the commit: each takes this row to get its sequences
_HOLD_SEQUENCE = "select from support.ticket_sla_relay where id = 1 for update"
# all records after the common one step aside, since a sequence can be given anew only when it is free
_STEP_ASIDE = """
create temporary table moved on commit drop as
with taken as (delete from support.ticket_sla_breaches where seq > %(common_seq)s returning *)
select * from taken
"""
_WRITE_BACK = """
insert into support.ticket_sla_breaches (seq, ticket_id, number, kind, due_at, breached_at, correlation_id, payload)
values (%(seq)s, %(ticket_id)s, %(number)s, %(kind)s, %(due_at)s, %(breached_at)s, %(correlation_id)s, %(payload)s)
"""
_PUT_BEHIND = """
insert into support.ticket_sla_breaches (seq, ticket_id, number, kind, due_at, breached_at, correlation_id, payload, recorded_at)
select %(last_seq)s + row_number() over (order by seq), ticket_id, number, kind, due_at, breached_at, correlation_id, payload, recorded_at
from moved where not ticket_id = any(%(ticket_ids)s::uuid[])
"""
_SET_POSITION = """
update support.ticket_sla_relay set published_seq = %(last_seq)s, published_at = clock_timestamp(),
    next_seq = (select max(seq) from support.ticket_sla_breaches)
where id = 1
"""


class RepairablePostgresOutbox(PostgresOutbox):
    """The outbox with ``rebase``; the relay's lock and the change have a session each, so that a long change does not let the lock go."""

    def __init__(self, settings: PostgresSettings) -> None:
        super().__init__(settings)
        self._repair = settings.connect(purpose="recovery")

    def close(self) -> None:
        """End both sessions."""
        self._repair.close()
        super().close()

    def rebase(self, published: Sequence[PublishedRecord], *, common_seq: int) -> None:
        """Put ``published``, whose sequences follow ``common_seq`` without a gap, in the place of the records after ``common_seq``.

        One transaction. Later records of the same tickets go, for their event is out; the others keep their order behind the last of
        ``published``. Raises ``DatabaseError``, ``DatabaseUnavailable``, and the driver's error where the records contradict the table.
        """
        last_seq = published[-1].record.seq
        with translated_errors(self._settings), self._repair.transaction(), self._repair.cursor() as cursor:
            cursor.execute(_HOLD_SEQUENCE)
            cursor.execute(_STEP_ASIDE, {"common_seq": common_seq})
            cursor.executemany(_WRITE_BACK, [_columns(one) for one in published])
            cursor.execute(_PUT_BEHIND, {"last_seq": last_seq, "ticket_ids": [one.record.ticket_id for one in published]})
            cursor.execute(_SET_POSITION, {"last_seq": last_seq})


def _columns(published: PublishedRecord) -> dict[str, object]:
    return {
        "seq": published.record.seq,
        "ticket_id": published.record.ticket_id,
        "number": published.number,
        "kind": published.kind,
        "due_at": published.due_at,
        "breached_at": published.breached_at,
        "correlation_id": published.record.correlation_id,
        "payload": published.record.payload,
    }
