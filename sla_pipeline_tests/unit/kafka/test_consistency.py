"""Consistency of Postgres and Kafka: every contradiction is found, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sla_pipeline.errors import FailClosed
from sla_pipeline.kafka.consistency import require_agreement, require_progress, waiting_records
from sla_pipeline.kafka.progress import Progress, record_digest
from sla_pipeline.outbox import BreachRecord


def rows(*sequences: int, run: str = "run-1") -> list[BreachRecord]:
    return [BreachRecord(seq, f"ticket-{seq}", run, "{}") for seq in sequences]


def at(seq: int) -> Progress:
    return Progress.without_events(seq, record_digest(rows(seq)[0]) if seq else "", "run")


def test_no_record_is_a_lost_one() -> None:
    with pytest.raises(FailClosed, match="topic progress holds no progress record"):
        require_progress(None, "progress")


@given(published=st.integers(0, 50), ahead=st.integers(0, 50), waiting=st.integers(0, 50))
def test_a_copy_that_lags_and_records_that_wait_agree(published: int, ahead: int, waiting: int) -> None:
    require_agreement(at(published + ahead), published_before=published, last_seq=published + ahead + waiting)


@given(progress=st.integers(1, 50), short_by=st.integers(1, 50))
def test_fewer_records_than_published_fail_closed(progress: int, short_by: int) -> None:
    last_seq = max(0, progress - short_by)
    with pytest.raises(
        FailClosed, match=f"progress is at sequence {progress}, but Postgres has handed out only {last_seq}"
    ):
        require_agreement(at(progress), published_before=0, last_seq=last_seq)


@given(progress=st.integers(0, 50), more=st.integers(1, 50))
def test_a_copy_ahead_of_kafka_fails_closed(progress: int, more: int) -> None:
    with pytest.raises(
        FailClosed, match=f"sequence {progress + more} is published, but Kafka's progress is at {progress}"
    ):
        require_agreement(at(progress), published_before=progress + more, last_seq=100)


@given(progress=st.integers(0, 20), waiting=st.integers(0, 20))
def test_what_waits_is_what_comes_after_the_published_row(progress: int, waiting: int) -> None:
    expected = rows(*range(progress + 1, progress + waiting + 1))
    read = rows(progress) + expected if progress else expected
    assert waiting_records(at(progress), read, last_seq=progress + waiting) == expected


@pytest.mark.parametrize(
    ("read", "last_seq", "reason"),
    [
        ([], 9, "breach record 5, the last one published, is gone"),
        (rows(6, 7), 9, "breach record 5, the last one published, is gone"),
        (rows(5, run="another") + rows(6), 6, "breach record 5 .* is not the one that was published"),
        (rows(5, 7), 7, "breach record 6 is missing from Postgres; the next one there is 7"),
        (rows(5, 6, 7, 9), 9, "breach record 8 is missing"),
        (rows(5), 9, "breach records 6 to 9 are missing"),
    ],
)
def test_a_contradiction_in_the_rows_fails_closed(read: list[BreachRecord], last_seq: int, reason: str) -> None:
    with pytest.raises(FailClosed, match=f"{reason}.*Nothing is published"):
        waiting_records(at(5), read, last_seq=last_seq)


def test_a_hole_at_the_very_start_fails_closed() -> None:
    with pytest.raises(FailClosed, match="breach record 1 is missing from Postgres; the next one there is 2"):
        waiting_records(at(0), rows(2, 3), last_seq=3)
