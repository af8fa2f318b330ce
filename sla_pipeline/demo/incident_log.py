"""Reader of the incident log: a CSV file becomes typed changes, or one error with file, line and remedy.

``data/README.md`` describes columns and rules; ``ticket_history.py`` applies the changes to tickets.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sla_pipeline.breach import Priority
from sla_pipeline.errors import InputError

__all__ = [
    "BUNDLED_LOG",
    "LOG_COLUMNS",
    "STATUSES",
    "Change",
    "IncidentLog",
    "log_timestamp",
    "parse_log_timestamp",
    "read_log",
]

BUNDLED_LOG = Path(__file__).parent / "data" / "incident_log_2016.csv"
STATUSES = ("New", "InWork", "OnHold", "Resolved", "Closed")
# columns that are read; others are ignored
LOG_COLUMNS = ("number", "at", "opened_at", "status", "priority", "queue", "assignee", "requester")

# the event's contract allows 64 characters; these need no quoting anywhere
_NUMBER = re.compile(r"[A-Za-z0-9._-]{1,64}")
_TIMESTAMP = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}Z", re.ASCII)
_WHOLE_NUMBER = re.compile(r"[0-9]{1,18}")
# other years are typing errors; a deadline beyond year 9999 could not be computed
_YEARS = range(1970, 2200)
# queue of a row without one
_NO_QUEUE = 0
# bound of a quoted value in an error; longer ones are cut
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class Change:
    """One line of the log: the state of a ticket from ``at`` on.

    Times are UTC, whole minutes; people and queues are the log's numbers.
    """

    number: str
    at: datetime
    opened_at: datetime
    status: str
    priority: Priority
    queue: int
    assignee: int | None
    requester: int


@dataclass(frozen=True, slots=True)
class IncidentLog:
    """A complete log: its changes in the order in which they took effect."""

    source: str
    changes: tuple[Change, ...]

    def until(self, moment: datetime) -> "IncidentLog":
        """Return the log up to and including ``moment``."""
        return IncidentLog(self.source, tuple(change for change in self.changes if change.at <= moment))

    def by_ticket(self) -> dict[str, list[Change]]:
        """Return the changes of each ticket by its number; tickets in the order of their first change."""
        histories: dict[str, list[Change]] = {}
        for change in self.changes:
            histories.setdefault(change.number, []).append(change)
        return histories


def log_timestamp(moment: datetime) -> str:
    """Format a time as the log does, ``2016-02-29T01:23Z``; seconds appear only when they are not zero."""
    whole = not (moment.second or moment.microsecond)
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="minutes" if whole else "auto") + "Z"


def parse_log_timestamp(text: str) -> datetime:
    """Parse a time of the log. Raises ``ValueError`` with the expected form."""
    if not _TIMESTAMP.fullmatch(text):
        raise ValueError("write a UTC time in whole minutes, such as 2016-02-29T01:23Z")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("there is no such date or time of day; write one such as 2016-02-29T01:23Z") from None
    if moment.year not in _YEARS:
        raise ValueError(f"its year must be between {_YEARS.start} and {_YEARS.stop - 1}")
    return moment


def read_log(path: Path = BUNDLED_LOG) -> IncidentLog:
    """Read the log in the file ``path``, by default the one in the package.

    Raises ``InputError`` with file, line, column, value and remedy: for an unreadable file, a missing column, a line of
    another length, a malformed value, lines not in the order of ``at``, or a file without changes.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return IncidentLog(str(path), tuple(_changes(str(path), file)))
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; check the path and its rights") from None


def _changes(source: str, lines: Iterable[str]) -> Iterator[Change]:
    reader = csv.reader(lines, strict=True)
    header: list[str] | None = None
    previous: Change | None = None
    try:
        for row in reader:
            if not row:  # empty line
                continue
            if header is None:
                header = _checked_header(source, reader.line_num, row)
                continue
            change = _change(_Line(source, reader.line_num, _by_column(source, reader.line_num, header, row)))
            if previous is not None and change.at < previous.at:
                raise InputError(
                    f"{source}, line {reader.line_num}, column at: {log_timestamp(change.at)} is earlier than "
                    f"{log_timestamp(previous.at)} on the line before; sort the lines by at, leaving lines of the same "
                    "minute in their order"
                )
            previous = change
            yield change
    except csv.Error as error:
        raise InputError(
            f"{source}, line {reader.line_num}: this is not CSV ({error}); check its quotes and line ends"
        ) from None
    if header is None:
        raise InputError(f"{source} is empty; its first line must name the columns {', '.join(LOG_COLUMNS)}")
    if previous is None:
        raise InputError(f"{source} holds no change, only its header; add the lines of at least one ticket")


def _checked_header(source: str, line: int, header: list[str]) -> list[str]:
    missing = [column for column in LOG_COLUMNS if column not in header]
    if missing:
        raise InputError(
            f"{source}, line {line}: column {', '.join(missing)} is missing from the header "
            f"{_shown(','.join(header))}; the first line must name {', '.join(LOG_COLUMNS)}"
        )
    repeated = sorted({column for column in LOG_COLUMNS if header.count(column) > 1})
    if repeated:
        raise InputError(
            f"{source}, line {line}: column {', '.join(repeated)} is named more than once in the header; keep one of "
            "each"
        )
    return header


def _by_column(source: str, line: int, header: Sequence[str], row: Sequence[str]) -> dict[str, str]:
    if len(row) != len(header):
        raise InputError(
            f"{source}, line {line}: it has {len(row)} values, but the header names {len(header)} columns "
            f"({_shown(','.join(row))}); check its commas and quotes"
        )
    return dict(zip(header, row, strict=True))


@dataclass(frozen=True, slots=True)
class _Line:
    """Values of a line by column, and its place in the file for errors."""

    source: str
    number: int
    values: Mapping[str, str]

    def fault(self, column: str, remedy: str) -> InputError:
        return InputError(
            f"{self.source}, line {self.number}, column {column}: {_shown(self.values[column])}; {remedy}"
        )

    def matching(self, column: str, pattern: re.Pattern[str], remedy: str) -> str:
        value = self.values[column]
        if not pattern.fullmatch(value):
            raise self.fault(column, remedy)
        return value

    def choice(self, column: str, allowed: Sequence[str]) -> str:
        value = self.values[column]
        if value not in allowed:
            raise self.fault(column, f"write one of {', '.join(allowed)}")
        return value

    def moment(self, column: str) -> datetime:
        try:
            return parse_log_timestamp(self.values[column])
        except ValueError as error:
            raise self.fault(column, str(error)) from None

    def whole_number(self, column: str) -> int:
        return int(self.matching(column, _WHOLE_NUMBER, "write a whole number of at most 18 digits"))

    def optional_whole_number(self, column: str) -> int | None:
        if not self.values[column]:
            return None
        return int(self.matching(column, _WHOLE_NUMBER, "write a whole number of at most 18 digits, or leave it empty"))


def _change(line: _Line) -> Change:
    queue = line.optional_whole_number("queue")
    return Change(
        number=line.matching("number", _NUMBER, "write 1 to 64 letters, digits, dots, dashes or underscores"),
        at=line.moment("at"),
        opened_at=line.moment("opened_at"),
        status=line.choice("status", STATUSES),
        priority=Priority(line.choice("priority", tuple(Priority))),
        queue=_NO_QUEUE if queue is None else queue,
        assignee=line.optional_whole_number("assignee"),
        requester=line.whole_number("requester"),
    )


def _shown(value: str) -> str:
    return repr(value if len(value) <= _SHOWN_CHARACTERS else value[:_SHOWN_CHARACTERS] + "...")
