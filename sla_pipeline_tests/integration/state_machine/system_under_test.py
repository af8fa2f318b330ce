"""System under test: the database, the topics and the sessions of one example.

The rules in ``machine.py`` act on it; ``expected_state.py`` checks what it reads.
"""

import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import args_row, class_row
from psycopg.types.string import TextLoader

from sla_pipeline.errors import KafkaUnavailable
from sla_pipeline.kafka.relay import TRANSACTION_LIMIT, Relay
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import create_topics
from sla_pipeline.postgres.database import Database
from sla_pipeline.postgres.outbox import PostgresOutbox
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline_tests.integration.state_machine.database_state import (
    COLUMNS,
    BreachRow,
    DatabaseState,
    SetAsideRow,
    TicketRow,
)
from sla_pipeline_tests.integration.state_machine.topic_consumer import TopicConsumer
from sla_pipeline_tests.waiting import wait_until

__all__ = ["HOLDS", "SystemUnderTest", "through_outages"]

Connection = psycopg.Connection[Any]

_TICKETS = sql.SQL("select {} from support.tickets").format(sql.SQL(", ").join(map(sql.Identifier, COLUMNS)))
_INSERT = sql.SQL("insert into support.tickets ({}) values ({})").format(
    sql.SQL(", ").join(map(sql.Identifier, COLUMNS)), sql.SQL(", ").join(map(sql.Placeholder, COLUMNS))
)
_RECORDS = "select seq, ticket_id, kind, due_at, breached_at, payload from support.ticket_sla_breaches order by seq"
_SET_ASIDE = """
select s.ticket_id, s.next_try_at, t.xmin::text is distinct from s.row_version
from support.ticket_sla_set_aside s left join support.tickets t on t.id = s.ticket_id order by s.ticket_id
"""
_POSITIONS = "select last_seq, published_seq from support.ticket_sla_relay"
_EMPTY = (
    "truncate support.tickets, support.ticket_sla_breaches, support.ticket_sla_cycles, support.ticket_sla_set_aside",
    "update support.ticket_sla_relay set last_seq = 0, published_seq = 0, published_at = null",
)
# kinds of row lock that an operator holds; a new comment locks only the key and must not block the monitor
HOLDS = {"row": "for update", "comment": "for key share"}

_examples = itertools.count(1)

_OUTAGE_SECONDS = 120.0


def through_outages(work: Callable[[], object]) -> None:
    """Repeat ``work`` while Kafka is unavailable, up to a deadline, as the next cycles would.

    A busy machine may stall the broker.
    """
    deadline = time.monotonic() + _OUTAGE_SECONDS
    while True:
        try:
            work()
        except KafkaUnavailable:
            if time.monotonic() > deadline:
                raise
        else:
            return


class SystemUnderTest:
    """Sessions of the support service and of the worker on an emptied database, and topics of its own."""

    def __init__(self, *, owner_url: str, worker_url: str, kafka: KafkaSettings) -> None:
        self.postgres = PostgresSettings(worker_url)
        self.kafka = KafkaSettings(kafka.bootstrap_servers, topic=f"{kafka.topic}.example-{next(_examples)}")
        through_outages(lambda: create_topics(self.kafka, partitions=TopicConsumer.PARTITIONS))
        self.consumer = TopicConsumer(self.kafka)
        self.support = psycopg.connect(owner_url, autocommit=True)
        self.operator = psycopg.connect(owner_url)
        self._pods: list[Database] = []
        self._relays: list[Relay] = []
        self.support.adapters.register_loader("uuid", TextLoader)
        for statement in _EMPTY:
            self.support.execute(statement)

    def close(self) -> None:
        """Close all sessions."""
        self.operator.close()
        self.support.close()
        for pod in self._pods:
            pod.close()
        for relay in self._relays:
            relay.close()
        self.consumer.close()

    def read(self) -> DatabaseState:
        """Read the state of the database in one snapshot."""
        with self.support.transaction(), self.support.cursor() as cursor:
            cursor.execute("set transaction isolation level repeatable read")
            positions = cursor.execute(_POSITIONS).fetchone()
            with (
                self.support.cursor(row_factory=class_row(TicketRow)) as tickets,
                self.support.cursor(row_factory=args_row(BreachRow)) as records,
                self.support.cursor(row_factory=args_row(SetAsideRow)) as set_aside,
            ):
                assert positions is not None
                return DatabaseState(
                    tickets={ticket.id: ticket for ticket in tickets.execute(_TICKETS)},
                    records=tuple(records.execute(_RECORDS)),
                    set_aside=tuple(set_aside.execute(_SET_ASIDE)),
                    last_seq=positions[0],
                    published_seq=positions[1],
                )

    def insert(self, tickets: Iterable[TicketRow]) -> None:
        """Insert tickets in one transaction."""
        with self.support.transaction(), self.support.cursor() as cursor:
            cursor.executemany(_INSERT, [vars(ticket) for ticket in tickets])

    def delete(self, ticket_id: str) -> None:
        """Delete a ticket, as a merge does."""
        self.support.execute("delete from support.tickets where id = %s", (ticket_id,))

    def hold(self, ticket_ids: list[str], how: str) -> None:
        """Lock the rows in the operator's transaction, which stays open."""
        self.operator.execute(f"select from support.tickets where id = any(%s::uuid[]) {HOLDS[how]}", (ticket_ids,))

    def pod(self) -> Database:
        """Open the session of one more pod."""
        self._pods.append(Database(self.postgres))
        return self._pods[-1]

    def relay(self, *, transaction_limit: int = TRANSACTION_LIMIT) -> Relay:
        """Open a relay without a step hook."""
        self._relays.append(Relay(self.kafka, transaction_limit=transaction_limit))
        return self._relays[-1]

    def outbox(self) -> PostgresOutbox:
        """Open a session for a relay."""
        return PostgresOutbox(self.postgres)

    def relay_sessions(self) -> list[int]:
        """Return the process ids of the relays' sessions."""
        rows = self.support.execute(
            "select pid from pg_stat_activity where datname = current_database() and application_name = "
            "'ticket-sla-monitor relay'"
        )
        return [pid for (pid,) in rows]

    def cut(self, pid: int) -> None:
        """End a session from the server's side, and wait until its locks are released."""
        self.support.execute("select pg_terminate_backend(%s)", (pid,))
        self.wait_until_gone(pid)

    def wait_until_gone(self, pid: int) -> None:
        """Wait until the server has noticed the end of a session and has released its locks."""
        wait_until(
            lambda: self.support.execute("select from pg_stat_activity where pid = %s", (pid,)).fetchone() is None,
            what=f"session {pid} to end",
            seconds=60,
        )
