"""The outbox with the change that recovery makes to it, over the owner's login.

What belongs here: the statements of ``RepairableOutbox``. What does not: when they are called for.
"""

from collections.abc import Sequence

import psycopg

from sla_pipeline.kafka.published import PublishedRecord
from sla_pipeline.postgres.outbox import PostgresOutbox
from sla_pipeline.postgres.session import PostgresSettings

# all records after the common one step aside, since a sequence can be given anew only when it is free
_SET_ASIDE = """
create temporary table moved on commit drop as
with taken as (delete from support.ticket_sla_breaches where seq > %(common_seq)s returning *)
select * from taken
"""
_WRITE_BACK = """
insert into support.ticket_sla_breaches (seq, ticket_id, number, kind, due_at, breached_at, correlation_id, payload)
values (%s, %s, %s, %s, %s, %s, %s, %s)
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
    """See ``kafka.recovery.RepairableOutbox``."""

    def __init__(self, url: str) -> None:
        super().__init__(PostgresSettings(url))
        self._repair = psycopg.connect(url)

    def close(self) -> None:
        self._repair.close()
        super().close()

    def rebase(self, published: Sequence[PublishedRecord], *, common_seq: int) -> None:
        last_seq = published[-1].record.seq
        with self._repair.transaction(), self._repair.cursor() as cursor:
            cursor.execute("select from support.ticket_sla_relay where id = 1 for update")
            cursor.execute(_SET_ASIDE, {"common_seq": common_seq})
            cursor.executemany(
                _WRITE_BACK,
                [
                    (
                        one.record.seq,
                        one.record.ticket_id,
                        one.number,
                        one.kind,
                        one.due_at,
                        one.breached_at,
                        one.record.correlation_id,
                        one.record.payload,
                    )
                    for one in published
                ],
            )
            cursor.execute(_PUT_BEHIND, {"last_seq": last_seq, "ticket_ids": [one.record.ticket_id for one in published]})
            cursor.execute(_SET_POSITION, {"last_seq": last_seq})
