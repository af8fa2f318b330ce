"""Steps of a transaction on simulated links of every speed."""

import pytest

from sla_pipeline.kafka.pace import Pace, fitting_records
from sla_pipeline.outbox import BreachRecord

RECORDS = [BreachRecord(seq, "ticket", "run", "x" * 976) for seq in range(1, 10_001)]
RECORD_BYTES = 2_000
LARGE_QUEUE = {"queue_messages": 100_000, "queue_bytes": 10**9}


class Link:
    """A link that carries ``bytes_per_second`` and answers ``latency`` seconds later, with a clock of its own."""

    def __init__(self, bytes_per_second: float, latency: float = 0.0) -> None:
        self.bytes_per_second = bytes_per_second
        self.latency = latency
        self.now = 1_000.0

    def carry(self, size_bytes: int) -> None:
        self.now += size_bytes / self.bytes_per_second + self.latency

    def steps_within(self, seconds: float, *, queue_messages: int = 100_000, queue_bytes: int = 10**9) -> list[int]:
        """Record counts of a transaction's steps."""
        pace = Pace(seconds, clock=lambda: self.now)
        counts: list[int] = []
        while step := fitting_records(
            RECORDS[sum(counts) :], pace, queue_messages=queue_messages, queue_bytes=queue_bytes
        ):
            pace.begin_step()
            size_bytes = len(step) * RECORD_BYTES
            self.carry(size_bytes)
            pace.end_step(len(step), size_bytes)
            counts.append(len(step))
            if sum(counts) == len(RECORDS):
                break
        return counts


def test_a_fast_link_carries_everything_in_a_few_steps() -> None:
    assert Link(10**9, latency=0.001).steps_within(12) == [1, 16, 256, 4_096, 5_631]


@pytest.mark.parametrize("bytes_per_second", [400_000, 150_000, 30_000, 3_000, 1_000])
def test_a_slow_link_carries_what_it_can_in_time_and_never_more(bytes_per_second: int) -> None:
    link = Link(bytes_per_second)
    carried = sum(link.steps_within(12)) * RECORD_BYTES
    assert link.now <= 1_012
    assert carried >= 0.6 * 12 * bytes_per_second


def test_a_link_that_cannot_carry_a_second_record_in_time_carries_one() -> None:
    assert Link(RECORD_BYTES / 10).steps_within(12) == [1]


def test_no_step_is_larger_than_the_link_carries_in_half_of_the_time_left() -> None:
    """At half of the speed it would still arrive."""
    link = Link(150_000)
    pace = Pace(12, clock=lambda: link.now)
    pace.begin_step()
    link.carry(1_000 * RECORD_BYTES // 2)
    pace.end_step(1_000, 1_000 * RECORD_BYTES // 2)
    step = fitting_records(RECORDS, pace, **LARGE_QUEUE)
    assert len(step) == int(150_000 * pace.remaining_seconds / 2) // RECORD_BYTES


def test_a_late_answer_alone_does_not_keep_the_steps_small() -> None:
    assert sum(Link(10**9, latency=0.5).steps_within(12)) == len(RECORDS)


@pytest.mark.parametrize(("queue_messages", "largest"), [(101, 100), (100, 99), (2, 1), (1, 1)])
def test_no_step_is_larger_than_the_queue_holds_beside_a_progress_record(queue_messages: int, largest: int) -> None:
    steps = Link(10**9).steps_within(12, queue_messages=queue_messages)
    assert max(steps) == largest
    assert sum(steps) == len(RECORDS)


@pytest.mark.parametrize(("queue_bytes", "largest"), [(2 * 100 * RECORD_BYTES, 100), (2 * 100 * RECORD_BYTES - 2, 99)])
def test_half_of_the_queues_bytes_are_used(queue_bytes: int, largest: int) -> None:
    assert max(Link(10**9).steps_within(12, queue_bytes=queue_bytes)) == largest


def test_a_record_that_does_not_fit_into_the_queue_alone_is_tried_as_the_first_of_a_transaction_only() -> None:
    assert Link(10**9).steps_within(12, queue_bytes=100) == [1]


def test_without_time_the_first_record_is_tried_and_no_second() -> None:
    assert Link(10**9).steps_within(0) == [1]
