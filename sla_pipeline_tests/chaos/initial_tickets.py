"""Tickets of a run: inserted in bulk before it starts, their deadlines spread over it."""

import random
import uuid
from datetime import UTC, datetime, timedelta

import psycopg
from psycopg import sql

from sla_pipeline_tests.chaos.committed_versions import CommittedVersions, Version
from sla_pipeline_tests.chaos.disruptions import Scenario, seeded

__all__ = ["InitialTickets", "insert_initial_tickets"]

# tickets per requested breach: some tickets never become due, some get their reply in time
_TICKETS_PER_BREACH = 1.25
# Deadlines start a little before the run, as an initial backlog, and reach to its end. A run takes longer on a busy
# machine, so a trickle of tickets follows; those not due at the end are closed.
_OVERDUE_AT_ONCE_SECONDS = 8.0
_TRICKLE_SECONDS = 300.0
_TRICKLE_PER_SECOND = 5
_HOUR = timedelta(hours=1)

_COLUMNS = (
    "id",
    "number",
    "tenant_id",
    "queue_id",
    "requester_user_id",
    "assignee_user_id",
    "priority",
    "status",
    "first_response_due_at",
    "first_response_at",
    "resolution_due_at",
    "resolved_at",
)


class InitialTickets:
    """Ids of the tickets in the order of ``due_ats``, their decisive deadlines."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.due_ats: list[datetime] = []


def insert_initial_tickets(owner_url: str, scenario: Scenario, committed: CommittedVersions) -> InitialTickets:
    """Insert all tickets and record their first versions in ``committed``."""
    rng = seeded(scenario.seed, "tickets")
    tickets = InitialTickets()
    began = datetime.now(UTC) - timedelta(seconds=_OVERDUE_AT_ONCE_SECONDS)
    count = round(scenario.tickets * _TICKETS_PER_BREACH)
    span = _OVERDUE_AT_ONCE_SECONDS + scenario.seconds
    trickle = round(_TRICKLE_SECONDS * _TRICKLE_PER_SECOND)
    offsets = [span * number / count for number in range(count)] + [
        span + number / _TRICKLE_PER_SECOND for number in range(trickle)
    ]
    tenant_id, requester_id = str(_uuid(rng)), str(_uuid(rng))
    queues = [str(_uuid(rng)) for _ in range(12)]
    copy = sql.SQL("copy support.tickets ({}) from stdin").format(sql.SQL(", ").join(map(sql.Identifier, _COLUMNS)))
    with psycopg.connect(owner_url) as connection, connection.cursor() as cursor, cursor.copy(copy) as rows:
        for number, offset in enumerate(offsets):
            due_at = began + timedelta(seconds=offset)
            ticket_id, version = str(_uuid(rng)), _version(rng, due_at)
            tickets.ids.append(ticket_id)
            tickets.due_ats.append(due_at)
            committed.create(ticket_id, version)
            rows.write_row(
                (
                    ticket_id,
                    f"CHS-{number:07}",
                    tenant_id,
                    rng.choice(queues),
                    requester_id,
                    rng.choice((requester_id, None)),
                    rng.choice(("Critical", "High", "Normal", "Low")),
                    version.status,
                    version.first_response_due_at,
                    version.first_response_at,
                    version.resolution_due_at,
                    version.resolved_at,
                )
            )
    return tickets


def _uuid(rng: random.Random) -> uuid.UUID:
    return uuid.UUID(int=rng.getrandbits(128), version=4)


def _version(rng: random.Random, due_at: datetime) -> Version:
    """Return a ticket with its decisive deadline at ``due_at``; nine of ten are breached then without a reply."""
    before = due_at - _HOUR
    match rng.choices(("unanswered", "unresolved", "both", "in time", "done", "on hold"), (55, 25, 10, 5, 3, 2))[0]:
        case "unanswered":
            return Version("New", due_at, None, rng.choice((due_at + 8 * _HOUR, None)), None)
        case "unresolved":
            return Version("InWork", before, before - _HOUR, due_at, None)
        case "both":
            return Version("InWork", due_at, None, due_at - timedelta(seconds=rng.uniform(-3, 3)), None)
        case "in time":
            return Version("New", due_at + 8 * _HOUR, None, due_at + 24 * _HOUR, None)
        case "done":
            return Version(rng.choice(("Resolved", "Closed")), due_at, before, due_at, before)
        case _:
            return Version("OnHold", due_at, rng.choice((before, None)), due_at, None)
