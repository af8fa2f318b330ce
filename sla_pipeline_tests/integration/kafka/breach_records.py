"""Breach records as marking writes them, and the check that each was published once, in order."""

import os
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import psycopg

from sla_pipeline.breach import Breach, BreachKind
from sla_pipeline.event import event_json
from sla_pipeline.kafka.events import ReceivedEvent, read_events
from sla_pipeline.kafka.settings import KafkaSettings

_NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


class BreachRecords:
    """The outbox of one database. ``url`` is a superuser's."""

    def __init__(self, url: str) -> None:
        self._url = url

    def add(
        self,
        count: int,
        *,
        run_id: str = "run-that-marked",
        padding_bytes: int = 0,
        ticket_ids: Sequence[str] | None = None,
    ) -> list[int]:
        """Write ``count`` records as one batch of marking does; return their sequences.

        Padding makes each payload larger.
        """
        ids = ticket_ids or [str(uuid.uuid4()) for _ in range(count)]
        with psycopg.connect(self._url) as connection:
            row = connection.execute(
                "update support.ticket_sla_relay set last_seq = last_seq + %s where id = 1 returning last_seq", (count,)
            ).fetchone()
            assert row is not None
            sequences = list(range(row[0] - count + 1, row[0] + 1))
            with connection.cursor() as cursor:
                cursor.executemany(
                    "insert into support.ticket_sla_breaches (seq, ticket_id, number, kind, due_at, breached_at, "
                    "correlation_id, payload) values (%s, %s, %s, 'Resolution', %s, %s, %s, %s)",
                    [
                        self._row(seq, ticket_id, run_id, padding_bytes)
                        for seq, ticket_id in zip(sequences, ids, strict=True)
                    ],
                )
        return sequences

    @staticmethod
    def _row(seq: int, ticket_id: str, run_id: str, padding_bytes: int) -> tuple[object, ...]:
        due_at = _NOW - timedelta(seconds=seq)
        event = event_json(
            Breach(BreachKind.RESOLUTION, due_at),
            ticket_id=ticket_id,
            number=f"TCK-{seq}",
            tenant_id=str(uuid.uuid4()),
            queue_id=str(uuid.uuid4()),
            requester_user_id=str(uuid.uuid4()),
            assignee_user_id=None,
            priority="High",
            now_utc=_NOW,
        )
        # white space, so that it stays JSON, and random, so that it does not shrink to nothing on the wire
        padding = os.urandom(padding_bytes).translate(bytes(b" \t\n\r"[value % 4] for value in range(256))).decode()
        return seq, ticket_id, f"TCK-{seq}", due_at, _NOW, run_id, event + padding

    def positions(self) -> tuple[int, int]:
        """``published_seq`` and ``last_seq``."""
        row = self.query("select published_seq, last_seq from support.ticket_sla_relay where id = 1")[0]
        return row[0], row[1]

    def rewind(self, seq: int) -> None:
        """Restore the database to the moment when record ``seq`` was the last one, and published, as a backup does."""
        self.query("delete from support.ticket_sla_breaches where seq > %s returning seq", seq)
        self.query(
            "update support.ticket_sla_relay set last_seq = %s, published_seq = least(published_seq, %s) where id = "
            "1 returning id",
            seq,
            seq,
        )

    def end_session_of(self, pid: int) -> None:
        """End a session, as the server does with an idle client."""
        self.query("select pg_terminate_backend(%s)", pid)

    def relay_sessions(self) -> list[int]:
        """Return the process ids of the relay's sessions on this database."""
        rows = self.query(
            "select pid from pg_stat_activity where datname = current_database() and application_name = "
            "'ticket-sla-monitor relay'"
        )
        return [row[0] for row in rows]

    def query(self, statement: str, *values: object) -> list[tuple[int, ...]]:
        """Run one statement and return its rows."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            return connection.execute(statement.encode(), values).fetchall()

    def expected(self) -> list[tuple[int, str, str]]:
        """Return the expected events: sequence, ticket, payload."""
        with psycopg.connect(self._url) as connection:
            rows = connection.execute(
                "select seq, ticket_id::text, payload from support.ticket_sla_breaches order by seq"
            ).fetchall()
        return [(seq, ticket_id, payload) for seq, ticket_id, payload in rows]

    def assert_each_published_once_in_order(self, settings: KafkaSettings) -> list[ReceivedEvent]:
        """Compare the topic, as a consumer reads it, with the records; return the events by sequence."""
        events = list(read_events(settings))
        for partition in {event.partition for event in events}:
            sequences = [sequence_of(event) for event in events if event.partition == partition]
            assert sequences == sorted(sequences)
        events.sort(key=sequence_of)
        assert [(sequence_of(event), event.key.decode(), event.value.decode()) for event in events] == self.expected()
        return events


def sequence_of(event: ReceivedEvent) -> int:
    """Return the event's sequence."""
    return int(event.headers["outbox-seq"])
