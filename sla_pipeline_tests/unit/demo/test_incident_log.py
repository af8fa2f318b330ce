"""Reader of the incident log: well-formed files, and one error for each malformed one."""

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sla_pipeline.breach import Priority
from sla_pipeline.demo.incident_log import Change, log_timestamp, parse_log_timestamp, read_log
from sla_pipeline.errors import InputError

HEADER = "number,at,opened_at,status,priority,queue,assignee,requester"
GOOD = "INC1,2016-02-29T04:57Z,2016-02-29T04:40Z,New,Normal,70,89,2403"
LATER = "INC1,2016-02-29T05:30Z,2016-02-29T04:40Z,InWork,Normal,24,,2403"


def written(folder: Path, *lines: str) -> Path:
    path = folder / "log.csv"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def refusal(path: Path) -> str:
    """Return the error without the file's folder."""
    with pytest.raises(InputError) as caught:
        read_log(path)
    return str(caught.value).replace(f"{path.parent}/", "")


def test_the_log_in_the_package_holds_the_changes_that_its_readme_lists() -> None:
    log = read_log()
    assert (len(log.changes), len(log.by_ticket())) == (5_998, 890)
    assert (log.changes[0].at, log.changes[-1].at) == (
        datetime(2016, 2, 29, 1, 23, tzinfo=UTC),
        datetime(2017, 2, 4, 19, tzinfo=UTC),
    )
    assert Counter(change.status for change in log.changes) == {
        "New": 1638,
        "InWork": 1544,
        "OnHold": 990,
        "Resolved": 929,
        "Closed": 897,
    }
    assert sum(change.queue == 0 for change in log.changes) == 145
    assert sum(change.at < change.opened_at for change in log.changes) == 5


def test_the_attribution_of_the_log_stays_beside_it() -> None:
    readme = (Path(read_log().source).parent / "README.md").read_text()
    for owed in (
        "Amaral, C., Fantinato, M., & Peres, S. (2018)",
        "Incident management process enriched event log",
        "CC BY 4.0",
        "C57S4H",
    ):
        assert owed in readme


def test_a_line_becomes_a_change_and_a_line_without_a_queue_belongs_to_queue_zero(tmp_path: Path) -> None:
    no_queue = "INC2,2016-02-29T05:30Z,2016-02-29T04:40Z,OnHold,Low,,,7"
    assert read_log(written(tmp_path, HEADER, GOOD, no_queue)).changes == (
        Change(
            "INC1",
            datetime(2016, 2, 29, 4, 57, tzinfo=UTC),
            datetime(2016, 2, 29, 4, 40, tzinfo=UTC),
            "New",
            Priority.NORMAL,
            70,
            89,
            2403,
        ),
        Change(
            "INC2",
            datetime(2016, 2, 29, 5, 30, tzinfo=UTC),
            datetime(2016, 2, 29, 4, 40, tzinfo=UTC),
            "OnHold",
            Priority.LOW,
            0,
            None,
            7,
        ),
    )


def test_other_columns_another_order_of_columns_a_byte_order_mark_windows_line_ends_and_empty_lines_do_not_matter(
    tmp_path: Path,
) -> None:
    usual = read_log(written(tmp_path, HEADER, GOOD)).changes
    columns, values = HEADER.split(","), GOOD.split(",")
    turned = tmp_path / "turned.csv"
    turned.write_bytes(
        b"\xef\xbb\xbf"
        + "\r\n".join([",".join([*columns[::-1], "made_sla"]), "", ",".join([*values[::-1], "true"]), "", ""]).encode()
    )
    assert read_log(turned).changes == usual


def test_until_keeps_what_had_taken_effect(tmp_path: Path) -> None:
    log = read_log(written(tmp_path, HEADER, GOOD, LATER))
    assert [len(log.until(datetime(2016, 2, 29, 5, minute, tzinfo=UTC)).changes) for minute in (29, 30)] == [1, 2]


def with_value(column: str, value: str) -> str:
    values = dict(zip(HEADER.split(","), LATER.split(","), strict=True))
    return ",".join((values | {column: value}).values())


TIME = "write a UTC time in whole minutes, such as 2016-02-29T01:23Z"
NO_SUCH_TIME = "there is no such date or time of day; write one such as 2016-02-29T01:23Z"
DIGITS = "write a whole number of at most 18 digits"
NUMBER = "write 1 to 64 letters, digits, dots, dashes or underscores"


@pytest.mark.parametrize(
    ("column", "value", "remedy"),
    [
        ("number", "", NUMBER),
        ("number", "INC 1", NUMBER),
        ("number", "N" * 65, NUMBER),
        ("at", "", TIME),
        ("at", "2016-02-29 05:30", TIME),
        ("at", "2016-02-29T05:30:00Z", TIME),
        ("at", "2016-02-29T05:30+01:00", TIME),
        ("at", "\u0662016-02-29T05:30Z", TIME),
        ("at", "2016-02-30T05:30Z", NO_SUCH_TIME),
        ("at", "2016-02-29T24:30Z", NO_SUCH_TIME),
        ("opened_at", "yesterday", TIME),
        ("opened_at", "9999-12-31T23:59Z", "its year must be between 1970 and 2199"),
        ("status", "in work", "write one of New, InWork, OnHold, Resolved, Closed"),
        ("status", "", "write one of New, InWork, OnHold, Resolved, Closed"),
        ("priority", "3 - Moderate", "write one of Critical, High, Normal, Low"),
        ("queue", "-1", f"{DIGITS}, or leave it empty"),
        ("queue", "24.0", f"{DIGITS}, or leave it empty"),
        ("assignee", "Smith", f"{DIGITS}, or leave it empty"),
        ("requester", "", DIGITS),
        ("requester", "1" * 19, DIGITS),
        ("requester", "\u0661", DIGITS),
    ],
)
def test_a_malformed_value_is_refused_with_file_line_column_value_and_remedy(
    tmp_path: Path, column: str, value: str, remedy: str
) -> None:
    message = refusal(written(tmp_path, HEADER, GOOD, with_value(column, value)))
    assert message == f"log.csv, line 3, column {column}: {value!r}; {remedy}"


def test_a_very_long_value_is_shown_by_its_beginning(tmp_path: Path) -> None:
    assert len(refusal(written(tmp_path, HEADER, with_value("status", "x" * 100_000)))) < 250


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            [],
            "log.csv is empty; its first line must name the columns number, at, opened_at, status, priority, queue, "
            "assignee, requester",
        ),
        ([HEADER], "log.csv holds no change, only its header; add the lines of at least one ticket"),
        (
            [GOOD],
            f"log.csv, line 1: column {HEADER.replace(',', ', ')} is missing from the header {GOOD!r}; "
            f"the first line must name {HEADER.replace(',', ', ')}",
        ),
        (
            [HEADER.replace(",queue", ""), GOOD],
            f"log.csv, line 1: column queue is missing from the header {HEADER.replace(',queue', '')!r}; "
            f"the first line must name {HEADER.replace(',', ', ')}",
        ),
        ([HEADER + ",at", GOOD], "log.csv, line 1: column at is named more than once in the header; keep one of each"),
        (
            [HEADER, GOOD, "INC1,2016-02-29T05:30Z"],
            "log.csv, line 3: it has 2 values, but the header names 8 columns ('INC1,2016-02-29T05:30Z'); check its "
            "commas and quotes",
        ),
        (
            [HEADER, GOOD + ",1"],
            f"log.csv, line 2: it has 9 values, but the header names 8 columns ({GOOD + ',1'!r}); check its commas "
            "and quotes",
        ),
        (
            [HEADER, LATER, GOOD],
            "log.csv, line 3, column at: 2016-02-29T04:57Z is earlier than 2016-02-29T05:30Z on the line before; "
            "sort the lines by at, leaving lines of the same minute in their order",
        ),
        (
            [HEADER, GOOD, '"INC1,2016'],
            "log.csv, line 3: this is not CSV (unexpected end of data); check its quotes and line ends",
        ),
    ],
)
def test_a_malformed_file_is_refused_with_its_place_and_a_remedy(
    tmp_path: Path, lines: list[str], message: str
) -> None:
    assert refusal(written(tmp_path, *lines)) == message


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER)
    path.write_bytes(path.read_bytes() + b"INC\xff")
    assert (
        refusal(path) == f"log.csv is not UTF-8 text (invalid start byte at byte {len(HEADER) + 4}); save it as UTF-8"
    )


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert (
        refusal(tmp_path / "none.csv")
        == "none.csv cannot be read: No such file or directory; check the path and its rights"
    )
    assert refusal(tmp_path) == f"{tmp_path.name} cannot be read: Is a directory; check the path and its rights"


def test_a_time_is_written_as_the_log_writes_it_and_its_seconds_are_never_cut_off() -> None:
    assert log_timestamp(parse_log_timestamp("2016-02-29T01:23Z")) == "2016-02-29T01:23Z"
    assert log_timestamp(datetime(2016, 2, 29, 1, 23, 4, tzinfo=UTC)) == "2016-02-29T01:23:04Z"
