"""The one change that recovery makes to the outbox: published records that Postgres lost are written back under their old sequences.

What belongs here: the statements of ``RepairableOutbox``. What does not: when they are called for. Needs
the owner's login: the worker may not delete a record.
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

# rows of one round trip while records arrive from Kafka
_STAGED_ROWS = 1_000

# the records arrive here first, at the pace of Kafka: no lock is held meanwhile, and memory stays bounded. It ends with
# the session.
_STAGE = """
drop table if exists pg_temp.lost;
create temporary table lost (
    seq bigint primary key, ticket_id uuid not null, number text not null, kind text not null, due_at timestamptz not null,
    breached_at timestamptz not null, correlation_id text not null, payload text not null
)
"""
_STAGE_RECORD = """
insert into pg_temp.lost (seq, ticket_id, number, kind, due_at, breached_at, correlation_id, payload)
values (%(seq)s, %(ticket_id)s, %(number)s, %(kind)s, %(due_at)s, %(breached_at)s, %(correlation_id)s, %(payload)s)
"""
# no batch is marked from here to the commit: each takes this row to get its sequences
_HOLD_SEQUENCE = "select from support.ticket_sla_relay where id = 1 for update"
# sequences are unique in the table, so three numbers tell a run without a gap
_STAGED_RUN = "select count(*), min(seq), max(seq) from pg_temp.lost"
_FIRST_GAP = """
select min(expected.seq) from generate_series(%(common_seq)s + 1, %(last_seq)s) expected (seq)
where not exists (select from pg_temp.lost where lost.seq = expected.seq)
"""
# all records after the common one step aside, since a sequence can be given anew only when it is free
_STEP_ASIDE = """
create temporary table moved on commit drop as
with taken as (delete from support.ticket_sla_breaches where seq > %(common_seq)s returning *)
select * from taken
"""
_WRITE_BACK = """
insert into support.ticket_sla_breaches (seq, ticket_id, number, kind, due_at, breached_at, correlation_id, payload)
select seq, ticket_id, number, kind, due_at, breached_at, correlation_id, payload from pg_temp.lost
"""
_PUT_BEHIND = """
insert into support.ticket_sla_breaches (seq, ticket_id, number, kind, due_at, breached_at, correlation_id, payload, recorded_at)
select %(last_seq)s + row_number() over (order by seq), ticket_id, number, kind, due_at, breached_at, correlation_id, payload, recorded_at
from moved where not exists (select from pg_temp.lost where lost.ticket_id = moved.ticket_id)
"""
_SET_POSITION = """
update support.ticket_sla_relay set published_seq = %(last_seq)s, published_at = clock_timestamp(),
    last_seq = (select max(seq) from support.ticket_sla_breaches)
where id = 1
"""


class RepairableOutbox(PostgresOutbox):
    """The outbox with ``rebase``; the relay's lock and the change have a session each, so that a long change does
    not let the lock go.
    """

    def __init__(self, settings: PostgresSettings) -> None:
        super().__init__(settings)
        self._repair = settings.connect(purpose="recovery")

    def close(self) -> None:
        """End both sessions."""
        self._repair.close()
        super().close()

    def write_back(self, published: Iterable[PublishedRecord], *, common_seq: int, last_seq: int) -> None:
        """Put ``published``, the records ``common_seq + 1`` to ``last_seq``, in the place of the records after ``common_seq``.

        One transaction, after all of ``published`` has arrived. Later records of the same tickets go, for their event
        is out; the others keep their order behind ``last_seq``. Raises ``FailClosed``, with nothing changed, when
        ``published`` is not exactly this run of sequences or contradicts the table; ``PostgresSetupError``,
        ``PostgresUnavailable``.
        """
        given = {"common_seq": common_seq, "last_seq": last_seq}
        with translated_errors(self._settings):
            try:
                self._stage(published)
                with self._repair.transaction(), self._repair.cursor() as cursor:
                    cursor.execute(_HOLD_SEQUENCE)
                    _require_whole_run(cursor, common_seq, last_seq)
                    cursor.execute(_STEP_ASIDE, given)
                    cursor.execute(_WRITE_BACK)
                    cursor.execute(_PUT_BEHIND, given)
                    cursor.execute(_SET_POSITION, given)
            except (psycopg.IntegrityError, psycopg.DataError) as error:
                raise FailClosed(
                    f"the events with sequences {common_seq + 1} to {last_seq} cannot be written back: "
                    f"{fault_name(error)}. Nothing was changed; a person must decide by hand"
                ) from None

    def _stage(self, published: Iterable[PublishedRecord]) -> None:
        arriving = iter(published)
        self._repair.execute(_STAGE)
        with self._repair.cursor() as cursor:
            while page := [_columns(one) for one in islice(arriving, _STAGED_ROWS)]:
                cursor.executemany(_STAGE_RECORD, page)


def _require_whole_run(cursor: psycopg.Cursor[tuple[object, ...]], common_seq: int, last_seq: int) -> None:
    expected = (last_seq - common_seq, common_seq + 1, last_seq)
    found = cursor.execute(_STAGED_RUN).fetchone()
    if found == expected:
        return
    gap = cursor.execute(_FIRST_GAP, {"common_seq": common_seq, "last_seq": last_seq}).fetchone()
    what = (
        f"sequence {gap[0]} is missing"
        if gap and gap[0] is not None
        else f"there are others (count, first, last: {found})"
    )
    raise FailClosed(
        f"the records to be written back are not the sequences {common_seq + 1} to {last_seq}, each once: {what}. "
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
