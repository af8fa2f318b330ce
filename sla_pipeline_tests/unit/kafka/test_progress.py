"""The progress record, and the digest of a row of the outbox."""

import json

import pytest

from sla_pipeline.errors import FailClosed
from sla_pipeline.kafka.progress import PROGRESS_KEY, Progress, record_digest
from sla_pipeline.outbox import BreachRecord

_RECORDS = [BreachRecord(seq, f"ticket-{seq}", "run-1", f'{{"TicketId":"ticket-{seq}"}}') for seq in (8, 9, 10)]


def test_a_record_of_a_transaction_survives_the_wire() -> None:
    progress = Progress.of(_RECORDS, "run-2")
    assert (progress.seq, progress.first, progress.count, progress.digest, progress.run) == (
        10,
        8,
        3,
        record_digest(_RECORDS[-1]),
        "run-2",
    )
    assert Progress.from_json(PROGRESS_KEY, progress.to_json(), "here") == progress


def test_the_first_record_survives_the_wire() -> None:
    first = Progress.without_events(0, "", "create_topics")
    assert (first.seq, first.first, first.count) == (0, 1, 0)
    assert Progress.from_json(PROGRESS_KEY, first.to_json(), "here") == first


@pytest.mark.parametrize(
    "other",
    [
        _RECORDS[0]._replace(seq=11),
        _RECORDS[0]._replace(ticket_id="other"),
        _RECORDS[0]._replace(correlation_id="other"),
        _RECORDS[0]._replace(payload="other"),
    ],
)
def test_the_digest_covers_all_that_identifies_a_row(other: BreachRecord) -> None:
    assert len(record_digest(_RECORDS[0])) == 32
    assert record_digest(other) != record_digest(_RECORDS[0])


_GOOD = json.loads(Progress.of(_RECORDS, "run").to_json())


@pytest.mark.parametrize(
    "change",
    [
        {"seq": "10"},
        {"seq": True},
        {"seq": -1},
        {"seq": 11},
        {"count": 2},
        {"count": -1, "first": 12},
        {"digest": ""},
        {"digest": "x" * 32},
        {"digest": None},
        {"run": 7},
        {"at": None},
        {"seq": 0, "first": 1, "count": 0},
    ],
)
def test_a_record_that_does_not_add_up_fails_closed(change: dict[str, object]) -> None:
    with pytest.raises(FailClosed, match="offset 5 is not a progress record of this package"):
        Progress.from_json(PROGRESS_KEY, json.dumps(_GOOD | change).encode(), "offset 5")


@pytest.mark.parametrize("value", [None, b"", b"null", b"17", b"[]", b"{}", b"not json", b"\xff\xfe"])
def test_what_is_no_record_at_all_fails_closed(value: bytes | None) -> None:
    with pytest.raises(FailClosed, match="another program writes to the topic"):
        Progress.from_json(PROGRESS_KEY, value, "offset 5")


def test_a_record_under_another_key_fails_closed() -> None:
    with pytest.raises(FailClosed):
        Progress.from_json(b"other", json.dumps(_GOOD).encode(), "offset 5")


def test_a_field_of_a_later_version_is_ignored() -> None:
    assert Progress.from_json(PROGRESS_KEY, json.dumps(_GOOD | {"epoch": 3}).encode(), "here").seq == 10
