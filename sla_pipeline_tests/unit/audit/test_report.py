"""The report, for programs and for people."""

import io
import json

from rich.console import Console

from sla_pipeline.audit.findings import EXAMPLE_LIMIT, AuditReport, Check, Example, Positions, Severity, Tally
from sla_pipeline.audit.report import as_table
from sla_pipeline_tests.unit.audit.rows import NOW

TICKET = "0a11ce00-0000-4000-8000-000000000001"


def report_of(tally: Tally) -> AuditReport:
    return AuditReport(NOW, Positions(4, 5, 6, 5, 5), 1_000, 6, 5, 3, tally.findings({TICKET: "TCK-1"}))


def printed(report: AuditReport) -> str:
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    console.print(as_table(report))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_report_holds_every_check_and_is_clean_without_faults() -> None:
    tally = Tally()
    tally.add(Check.REPLY_BEFORE_BREACH, Example(TICKET))
    tally.add(Check.RECORD_WAITING, Example(TICKET), 7)
    report = report_of(tally)
    assert [finding.check for finding in report.findings] == list(Check)
    assert report.clean
    assert report.finding(Check.RECORD_WAITING).count == 7


def test_one_fault_is_enough() -> None:
    tally = Tally()
    tally.add(Check.RECORD_GAP, Example(seq=3))
    assert not report_of(tally).clean


def test_the_first_few_cases_are_kept_and_their_numbers_filled_in() -> None:
    tally = Tally()
    for seq in range(1, 10):
        tally.add(Check.EVENT_INVALID, Example(TICKET, seq=seq))
    finding = report_of(tally).finding(Check.EVENT_INVALID)
    assert finding.count == 9
    assert finding.examples == tuple(Example(TICKET, "TCK-1", seq) for seq in range(1, EXAMPLE_LIMIT + 1))


def test_the_report_for_programs_is_plain_json() -> None:
    tally = Tally()
    tally.add(Check.EVENT_INVALID, Example(TICKET, None, 4, 2, 17))
    as_dict = json.loads(json.dumps(report_of(tally).as_dict()))
    assert as_dict["clean"] is False
    assert as_dict["positions"] == {
        "published_seq": 4,
        "progress_seq": 5,
        "last_seq": 6,
        "highest_event_seq": 5,
        "progress_seq_after": 5,
    }
    (finding,) = [finding for finding in as_dict["findings"] if finding["count"]]
    assert finding == {
        "check": "event_invalid",
        "severity": "fault",
        "title": "events that do not keep to the contract",
        "count": 1,
        "examples": [{"ticket_id": TICKET, "number": "TCK-1", "seq": 4, "partition": 2, "offset": 17}],
    }


def test_the_table_shows_every_fault_looked_for_and_of_the_information_what_was_found() -> None:
    tally = Tally()
    tally.add(Check.EVENT_INVALID, Example(TICKET, None, 4, 2, 17), 1_234)
    tally.add(Check.RECORD_WAITING, Example(TICKET, None, 5))
    text = printed(report_of(tally))
    for check in Check:
        assert (check.title in text) == (check.severity is not Severity.INFORMATION or check is Check.RECORD_WAITING)
    assert "1,234" in text
    assert f"TCK-1 id {TICKET} seq 4 partition 2 offset 17" in text
    assert "they DO NOT agree: 1,000 marked tickets, 6 breach records, 5 events" in text


def test_a_number_that_looks_like_markup_or_moves_the_cursor_is_printed_as_text() -> None:
    tally = Tally()
    tally.add(Check.EVENT_INVALID, Example(TICKET, "[bold]x[/nothing]\x1b[2J"))
    tally.add(Check.EVENT_INVALID, Example(TICKET, "[bold]y[/nothing]"))
    tally.add(Check.EVENT_INVALID, Example(TICKET, "9" * 10_000))
    text = printed(report_of(tally))
    assert "'[bold]x[/nothing]\\x1b[2J'" in text
    assert "[bold]y[/nothing] id" in text
    assert text.count("9") < 200


def test_checks_have_titles_of_their_own_and_codes_for_programs() -> None:
    assert len({check.title for check in Check}) == len(Check)
    assert all(check.code == check.code.lower() and check.code.isidentifier() for check in Check)
