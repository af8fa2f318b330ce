"""Write published records that Postgres lost back into the outbox, under their old sequences.

Needs the owner's login: the worker may not delete a record.
"""

from collections.abc import Iterable
from itertools import islice

import psycopg

from sla_pipeline.errors import FailClosed
from sla_pipeline.postgres.faults import fault_name
from sla_pipeline.postgres.outbox import PostgresOutbox
from sla_pipeline.postgres.session import PostgresSettings, translated_errors
from sla_pipeline.recovery.topic_contents import PublishedRecord

__all__ = ["RepairableOutbox"]

# Rows of one round trip while records arrive from Kafka.
_STAGED_ROWS = 1_000

# Records arrive here first, at the pace of Kafka: no lock is held meanwhile, and memory stays bounded. The table ends
# with the session.
_STAGE = """
drop table if exists pg_temp.lost;
create temporary table lost (
    seq bigint primary key, ticket_id uuid not null, number text not null, kind text not null,
    due_at timestamptz not null, breached_at timestamptz not null, correlation_id text not null, payload text not null
)
"""
_STAGE_RECORD = """
insert into pg_temp.lost (seq, ticket_id, number, kind, due_at, breached_at, correlation_id, payload)
values (%(seq)s, %(ticket_id)s, %(number)s, %(kind)s, %(due_at)s, %(breached_at)s, %(correlation_id)s, %(payload)s)
"""
# No batch is marked from here to the commit: each locks this row to get its sequences.
_HOLD_SEQUENCE = "select from support.ticket_sla_relay where id = 1 for update"
# Sequences are unique in the table, so three numbers identify a run without a gap.
_STAGED_RUN = "select count(*), min(seq), max(seq) from pg_temp.lost"
_FIRST_GAP = """
select min(expected.seq) from generate_series(%(common_seq)s + 1, %(last_seq)s) expected (seq)
where not exists (select from pg_temp.lost where lost.seq = expected.seq)
"""
# All records after the common one are moved away: a sequence can be assigned again only when it is free.
_MOVE_AWAY = """
create temporary table moved on commit drop as
with taken as (delete from support.ticket_sla_breaches where seq > %(common_seq)s returning *)
select * from taken
"""
_WRITE_BACK = """
insert into support.ticket_sla_breaches (seq, ticket_id, number, kind, due_at, breached_at, correlation_id, payload)
select seq, ticket_id, number, kind, due_at, breached_at, correlation_id, payload from pg_temp.lost
"""
_APPEND = """
insert into support.ticket_sla_breaches
    (seq, ticket_id, number, kind, due_at, breached_at, correlation_id, payload, recorded_at)
select %(last_seq)s + row_number() over (order by seq), ticket_id, number, kind, due_at, breached_at, correlation_id,
    payload, recorded_at
from moved where not exists (select from pg_temp.lost where lost.ticket_id = moved.ticket_id)
"""
_SET_POSITION = """
update support.ticket_sla_relay set published_seq = %(last_seq)s, published_at = clock_timestamp(),
    last_seq = (select max(seq) from support.ticket_sla_breaches)
where id = 1
"""


class RepairableOutbox(PostgresOutbox):
    """The outbox with ``write_back``.

    The relay's lock and the repair have a session each, so that a long repair does not lose the lock.
    """

    def __init__(self, settings: PostgresSettings) -> None:
        super().__init__(settings)
        self._repair = settings.connect(purpose="recovery")

    def close(self) -> None:
        """End both sessions."""
        self._repair.close()
        super().close()

    def write_back(self, published: Iterable[PublishedRecord], *, common_seq: int, last_seq: int) -> None:
        """Replace the records after ``common_seq`` by ``published``, the records ``common_seq + 1`` to ``last_seq``.

        One transaction, after all of ``published`` has arrived. Later records of the same tickets are deleted, because
        their events are published; the others keep their order after ``last_seq``. Raise ``FailClosed``, with nothing
        changed, when ``published`` is not exactly this run of sequences or contradicts the table;
        ``PostgresSetupError`` or ``PostgresUnavailable``.
        """
        bounds = {"common_seq": common_seq, "last_seq": last_seq}
        with translated_errors(self._settings):
            try:
                self._stage(published)
                with self._repair.transaction(), self._repair.cursor() as cursor:
                    cursor.execute(_HOLD_SEQUENCE)
                    _require_whole_run(cursor, common_seq, last_seq)
                    cursor.execute(_MOVE_AWAY, bounds)
                    cursor.execute(_WRITE_BACK)
                    cursor.execute(_APPEND, bounds)
                    cursor.execute(_SET_POSITION, bounds)
            except (psycopg.IntegrityError, psycopg.DataError) as error:
                raise FailClosed(
                    f"the events with sequences {common_seq + 1} to {last_seq} cannot be written back: "
                    f"{fault_name(error)}. Nothing was changed; a person must decide by hand"
                ) from None

    def _stage(self, published: Iterable[PublishedRecord]) -> None:
        arriving = iter(published)
        self._repair.execute(_STAGE)
        with self._repair.cursor() as cursor:
            while page := [_columns(record) for record in islice(arriving, _STAGED_ROWS)]:
                cursor.executemany(_STAGE_RECORD, page)


def _require_whole_run(cursor: psycopg.Cursor[tuple[object, ...]], common_seq: int, last_seq: int) -> None:
    expected = (last_seq - common_seq, common_seq + 1, last_seq)
    found = cursor.execute(_STAGED_RUN).fetchone()
    if found == expected:
        return
    gap = cursor.execute(_FIRST_GAP, {"common_seq": common_seq, "last_seq": last_seq}).fetchone()
    reason = (
        f"sequence {gap[0]} is missing"
        if gap and gap[0] is not None
        else f"there are others (count, first, last: {found})"
    )
    raise FailClosed(
        f"the records to be written back are not the sequences {common_seq + 1} to {last_seq}, each once: {reason}. "
        "Nothing was changed; run `sla-pipeline recover` again"
    )


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
