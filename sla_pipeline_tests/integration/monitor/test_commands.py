"""Output of ``sla-pipeline preview`` and ``cycle``, for people and for programs, with the support service's texts."""

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from sla_pipeline import cli
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.postgres.migrate import upgrade
from sla_pipeline_tests.integration.conftest import Events
from sla_pipeline_tests.tickets import QUEUE, TENANT, breached_ids, change, make_ticket, make_tickets

Support = psycopg.Connection[Any]
Command = Callable[..., tuple[int, str, str]]
_OTHER_TENANT = "bbbbbbbb-0000-4000-8000-000000000002"
# Overdue by the system's clock, which the commands use.
_OVERDUE: dict[str, Any] = {"first_response_due_at": datetime(2026, 1, 1, tzinfo=UTC)}
# Each text once ended the command in a traceback, or was shown as another text.
_ODD_TEXTS = [
    "A[/b]",
    "[bold]A",
    "A:warning:",
    "\x1b[2JA",
    "A\nB",
    "A\u009b31m",
    "A\u202eB",
    "\u2028",
    "A\u200b",
    "\\[x]",
    "",
    " ",
    "Ж" * 64,
]


@pytest.fixture
def command(
    worker_url: str, kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Run a command with the worker's login; return exit code, standard output and standard error."""
    monkeypatch.setenv("SLA_POSTGRES_URL", worker_url)
    monkeypatch.setenv("SLA_KAFKA_BOOTSTRAP_SERVERS", kafka_settings.bootstrap_servers)
    monkeypatch.setenv("SLA_KAFKA_TOPIC", kafka_settings.topic)
    # The log goes to standard error too; the tests compare the output of the command alone.
    monkeypatch.setattr("sla_pipeline.cli.cycle.configure_logging", lambda: None)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["sla-pipeline", *arguments])
        code: Any = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code or 0
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def _cells(printed: str, ticket_id: str) -> list[str]:
    """Return the cells of the one line that holds the ticket's id."""
    (line,) = [line for line in printed.splitlines() if ticket_id in line]
    return [cell.strip() for cell in line.strip("│┃ ").split("│")]


def test_preview_lists_apart_what_a_cycle_would_not_try(support: Support, command: Command) -> None:
    good = make_ticket(support, **_OVERDUE, number="GOOD-1")
    bad = make_ticket(support, **_OVERDUE, number="BAD-1", queue_id=None)
    assert command("cycle")[0] == 1
    assert breached_ids(support) == {good}
    new = make_ticket(support, **_OVERDUE, number="NEW-1")
    ((since, next_try),) = support.execute(
        "select first_failed_at, next_try_at from support.ticket_sla_set_aside"
    ).fetchall()

    code, printed, _ = command("preview")
    assert code == 0
    assert "1 tickets are overdue and not marked" in printed
    assert _cells(printed, new) == ["2026-01-01 00:00:00", "NEW-1", "FirstResponse", "Normal", new]
    assert "1 more are overdue and set aside: a cycle now does not try them" in printed
    times = [f"{moment:%Y-%m-%d %H:%M:%S}" for moment in (since, next_try)]
    assert _cells(printed, bad) == [
        "BAD-1",
        "FirstResponse",
        *times,
        "the event cannot be built: queue_id is null",
        bad,
    ]

    shown = json.loads(command("preview", "--json")[1])
    assert [ticket["id"] for ticket in shown["oldest"]] == [new]
    assert [count["count"] for count in shown["counts"]] == [1]
    assert (shown["set_aside"]["count"], [ticket["id"] for ticket in shown["set_aside"]["tickets"]]) == (1, [bad])
    assert json.loads(command("preview", "--json", "--oldest", "0")[1])["set_aside"] == {"count": 1, "tickets": []}

    # The next cycle tries a row that has changed, and a row whose pause is over.
    change(support, bad, assignee_user_id=QUEUE)
    assert {ticket["id"] for ticket in json.loads(command("preview", "--json")[1])["oldest"]} == {bad, new}
    command("cycle")
    support.execute("update support.ticket_sla_set_aside set next_try_at = now()")
    shown = json.loads(command("preview", "--json")[1])
    assert ([ticket["id"] for ticket in shown["oldest"]], shown["set_aside"]["count"]) == ([bad], 0)


def test_preview_of_one_tenant(support: Support, command: Command) -> None:
    make_ticket(support, **_OVERDUE, queue_id=None)
    of_other_tenant = make_ticket(support, **_OVERDUE, queue_id=None, tenant_id=_OTHER_TENANT)
    without_tenant = make_ticket(support, **_OVERDUE, tenant_id=None)
    command("cycle")
    everything = json.loads(command("preview", "--json")[1])
    assert (everything["counts"], everything["set_aside"]["count"]) == ([], 3)
    assert without_tenant in [ticket["id"] for ticket in everything["set_aside"]["tickets"]]
    of_one = json.loads(command("preview", "--json", "--tenant-id", _OTHER_TENANT.upper())[1])
    assert [ticket["id"] for ticket in of_one["set_aside"]["tickets"]] == [of_other_tenant]


def test_preview_where_the_set_aside_table_cannot_be_read(support: Support, command: Command, owner_url: str) -> None:
    """A cycle would try all tickets then, so all are shown. The fault is named, and its remedy works."""
    bad = make_ticket(support, **_OVERDUE, queue_id=None)
    command("cycle")
    support.execute("revoke select on support.ticket_sla_set_aside from sla_worker")
    code, printed, stderr = command("preview")
    assert code == 3
    assert bad in printed
    assert stderr.startswith("sla-pipeline: permission denied for table ticket_sla_set_aside in database ")
    assert stderr.count("\n") == 1
    assert "Which tickets are set aside is not known" in stderr
    assert json.loads(command("preview", "--json")[1])["set_aside"] is None
    assert stderr.split("`")[-2] == "sla-pipeline migrate"
    upgrade(owner_url)
    code, printed, stderr = command("preview", "--json")
    assert (code, stderr, json.loads(printed)["set_aside"]["count"]) == (0, "", 1)


def test_preview_shows_texts_of_others_as_texts(support: Support, command: Command) -> None:
    """Number and priority are no markup, no emoji's name, and move no cursor; null differs from an empty text."""
    odd = {text: make_ticket(support, **_OVERDUE, number=text, priority=text) for text in _ODD_TEXTS}
    without = make_ticket(support, **_OVERDUE, number="TCK-1", priority=None)
    code, printed, _ = command("preview", "--oldest", "100")
    assert code == 0
    assert all(character.isprintable() or character == "\n" for character in printed)
    for text, ticket_id in odd.items():
        shown = text if text.isprintable() and text.strip() else repr(text)
        assert _cells(printed, ticket_id)[1::2] == [shown, shown]
    assert _cells(printed, without)[3] == "(none)"

    code, printed, _ = command("preview", "--json", "--oldest", "100")
    assert code == 0
    assert printed.isascii()
    assert {ticket["id"]: ticket["priority"] for ticket in json.loads(printed)["oldest"]} == {
        **{ticket_id: text for text, ticket_id in odd.items()},
        without: None,
    }


def test_a_cycle_lists_the_tickets_set_aside_while_they_wait(support: Support, command: Command) -> None:
    """Only the first of these cycles fails; each prints that nobody is called for the ticket."""
    bad = make_ticket(support, **_OVERDUE, number="A[/b]\x1b[2J", queue_id=None)
    code, printed, stderr = command("cycle")
    assert code == 1
    assert (
        stderr
        == f"sla-pipeline: ticket 'A[/b]\\x1b[2J' ({bad}) set aside: the event cannot be built: queue_id is null\n"
    )
    ((since, next_try),) = support.execute(
        "select first_failed_at, next_try_at from support.ticket_sla_set_aside"
    ).fetchall()
    for _ in range(2):
        assert printed.splitlines()[1:] == [
            "1 overdue tickets cannot be marked, and nobody is called for them; correct the row, or what refuses it: a "
            "row that has changed is tried by the next cycle, another one at its next try",
            f"  'A[/b]\\x1b[2J' ({bad}, FirstResponse) since {since:%Y-%m-%d %H:%M:%S} UTC: the event cannot be built: "
            f"queue_id is null; next try {next_try:%Y-%m-%d %H:%M:%S} UTC, or when the row has changed",
        ]
        code, printed, stderr = command("cycle")
        assert (code, stderr) == (0, "")
    code, printed, _ = command("cycle", "--json")
    report = json.loads(printed)
    assert (code, report["error_count"], report["set_aside"]["count"]) == (0, 0, 1)
    assert report["set_aside"]["tickets"][0]["number"] == "A[/b]\x1b[2J"


def test_a_cycle_lists_unknown_priorities(support: Support, command: Command, events: Events) -> None:
    make_tickets(support, 2, **_OVERDUE, priority="[/b]\u202e")
    make_ticket(support, **_OVERDUE, priority="Срочно")
    make_ticket(support, **_OVERDUE, priority="High")
    code, printed, _ = command("cycle")
    assert code == 0
    assert "4 marked" in printed
    assert "3 of them with a priority that is not in our list, sent as it is: '[/b]\\u202e', 'Срочно'" in printed
    assert sorted(event.priority for event in events()) == ["High", "[/b]\u202e", "[/b]\u202e", "Срочно"]

    make_ticket(support, **_OVERDUE, priority="Urgent")
    report = json.loads(command("cycle", "--json", "--tenant-id", TENANT)[1])
    assert (report["processed_count"], report["unknown_priority_count"], report["unknown_priorities"]) == (
        1,
        1,
        ["Urgent"],
    )
    assert "priority" not in command("cycle")[1]


def test_ten_thousand_bad_rows_are_a_hundred_errors_and_a_count(support: Support, command: Command) -> None:
    """Terminal, journal row and report hold the first hundred errors; the count is of all."""
    make_tickets(support, 10_000, apart=timedelta(0), **_OVERDUE, queue_id=None)
    code, printed, _ = command("cycle")
    assert (code, printed.count("queue_id is null")) == (1, 20)
    assert printed.endswith("\n  and 9980 more in support.ticket_sla_set_aside\n")
    support.execute("truncate support.ticket_sla_set_aside, support.ticket_sla_cycles")
    code, printed, stderr = command("cycle", "--json")
    report = json.loads(printed)
    assert (code, report["error_count"], len(report["errors"]), report["set_aside"]["count"]) == (
        1,
        10_000,
        100,
        10_000,
    )
    assert len(report["set_aside"]["tickets"]) == 20
    assert stderr.endswith("; and 9900 more errors; the log has a line for each ticket that was set aside\n")
    assert len(stderr) < 25_000
    ((size, lines, count),) = support.execute(
        "select length(error), array_length(string_to_array(error, E'\\n'), 1), error_count from "
        "support.ticket_sla_cycles"
    ).fetchall()
    assert (lines, count) == (101, 10_000)
    assert size < 25_000
