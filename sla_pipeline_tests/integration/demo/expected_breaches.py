"""Breaches that must follow from a log, computed independently of the product.

A second implementation of SPEC 1.1, 2.4 and the rules of the log's README: per ticket history instead of minute by
minute. It imports nothing from the product. Times are whole minutes since 1970.
"""

import csv
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

# minutes to the first response and to the resolution
_ALLOWED = {
    "Critical": (15, 4 * 60),
    "High": (60, 8 * 60),
    "Normal": (4 * 60, 2 * 24 * 60),
    "Low": (8 * 60, 5 * 24 * 60),
}
_NEVER = 1 << 60


class ExpectedBreach(NamedTuple):
    breached_at: str
    number: str
    kind: str
    due_at: str


def expected_breaches(log: Path, until: str | None = None) -> list[ExpectedBreach]:
    """Return all breaches up to and including ``until``, sorted; times as in the log."""
    last = _NEVER if until is None else _minutes(until)
    found = []
    for number, rows in _histories(log).items():
        # (minute, 0 or 1 for the kind, deadline): the earliest minute wins, within a minute the first response
        breach = min(_candidates(rows), default=None)
        if breach is not None and breach[0] <= last:
            minute, is_resolution, due = breach
            found.append(
                ExpectedBreach(_text(minute), number, ("FirstResponse", "Resolution")[is_resolution], _text(due))
            )
    return sorted(found)


def deadlines_moved_later(log: Path, until: str | None = None) -> int:
    """Return the number of breaches whose ticket got another deadline after the breach, by a new priority."""
    last = _NEVER if until is None else _minutes(until)
    histories = _histories(log)
    count = 0
    for breach in expected_breaches(log, until):
        *_, row = (row for row in histories[breach.number] if _minutes(row["at"]) <= last)
        count += _text(_deadlines(row)[breach.kind == "Resolution"]) != breach.due_at
    return count


def _histories(log: Path) -> dict[str, list[dict[str, str]]]:
    histories: dict[str, list[dict[str, str]]] = {}
    with log.open(newline="") as file:
        for row in csv.DictReader(file):
            histories.setdefault(row["number"], []).append(row)
    return histories


def _deadlines(row: dict[str, str]) -> tuple[int, int]:
    to_answer, to_resolve = _ALLOWED[row["priority"]]
    return _minutes(row["opened_at"]) + to_answer, _minutes(row["opened_at"]) + to_resolve


def _candidates(rows: list[dict[str, str]]) -> Iterator[tuple[int, int, int]]:
    """Yield, for each interval between two rows, the first minute at which each deadline would be found missed."""
    starts = [_minutes(row["at"]) for row in rows]
    answered = False
    for row, start, end in zip(rows, starts, [*starts[1:], _NEVER], strict=True):
        answered = answered or row["status"] != "New"
        to_answer, to_resolve = _deadlines(row)
        if not answered and max(start, to_answer + 1) < end:
            yield max(start, to_answer + 1), 0, to_answer
        if row["status"] == "InWork" and max(start, to_resolve + 1) < end:
            yield max(start, to_resolve + 1), 1, to_resolve


def _minutes(text: str) -> int:
    return int(datetime.strptime(text, "%Y-%m-%dT%H:%MZ").replace(tzinfo=UTC).timestamp()) // 60


def _text(minutes: int) -> str:
    return datetime.fromtimestamp(minutes * 60, UTC).strftime("%Y-%m-%dT%H:%MZ")
