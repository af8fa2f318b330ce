"""Overload: more overdue tickets than a cycle may mark, their order, and the memory used (SPEC 3.2, 3.5, 5.3, 5.7).

The order is ``(first_response_due_at, id)``, not the order of creation. A new ticket waits until all tickets with an
earlier deadline are marked; one with the earliest deadline is next. No ticket starves as long as cycles mark more
tickets than become overdue.
"""

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from sla_pipeline.cycle import BATCH_SIZE, MAX_BATCHES_PER_CYCLE, CycleInput
from sla_pipeline.kafka.events import read_events
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline_tests.benchmarks.overload import add_overdue_tickets
from sla_pipeline_tests.benchmarks.overload_process import Worker
from sla_pipeline_tests.integration.conftest import Cycle, Events
from sla_pipeline_tests.tickets import FIRST_RESPONSE_OVERDUE, NOW, breached_ids, make_tickets

Support = psycopg.Connection[Any]
_CEILING = BATCH_SIZE.default * MAX_BATCHES_PER_CYCLE.default
_BACKLOG = 200_000
_CYCLE_COUNT = 4
# lower than a leak of a cycle's ids, rows and payloads, which is some 20 MB per cycle
_MEMORY_GROWTH_MB = 15
_MEMORY_MB = 300


def _numbers_marked_by_cycle(support: Support) -> list[list[str]]:
    rows = support.execute(
        """
        select array_agg(b.number order by b.seq) from support.ticket_sla_breaches b
        join support.ticket_sla_cycles c on c.run_id = b.correlation_id group by c.id order by c.id
        """
    )
    return [numbers for (numbers,) in rows]


def _waves(numbers: list[str]) -> dict[str, int]:
    waves = [number.partition("-")[0] for number in numbers]
    return {wave: waves.count(wave) for wave in dict.fromkeys(waves)}


@pytest.mark.timeout(600)
def test_two_hundred_thousand_at_once(support: Support, worker_url: str, kafka_settings: KafkaSettings) -> None:
    # the worker uses the system's clock
    now = datetime.now(UTC)
    add_overdue_tickets(support, "first", _BACKLOG, due_hours_ago=24, now=now)
    support.execute("vacuum analyze support.tickets")
    outcomes = []
    with Worker(worker_url, kafka_settings) as worker:
        outcomes.append(worker.cycle())
        # a thousand that became overdue recently, and a hundred, moved here from elsewhere, with the earliest deadlines
        add_overdue_tickets(support, "new", 1_000, due_hours_ago=1, now=now)
        add_overdue_tickets(support, "old", 100, due_hours_ago=240, now=now)
        outcomes += [worker.cycle() for _ in range(_CYCLE_COUNT - 1)]

    assert [outcome.errors for outcome in outcomes] == [[]] * _CYCLE_COUNT
    assert [outcome.marked for outcome in outcomes] == [_CEILING] * _CYCLE_COUNT
    assert [outcome.published for outcome in outcomes] == [_CEILING] * _CYCLE_COUNT
    assert all(outcome.has_more for outcome in outcomes)
    totals = [_BACKLOG, *[_BACKLOG + 1_100] * (_CYCLE_COUNT - 1)]
    assert [outcome.backlog for outcome in outcomes] == [
        total - (cycle + 1) * _CEILING for cycle, total in enumerate(totals)
    ]

    marked = _numbers_marked_by_cycle(support)
    assert [_waves(numbers) for numbers in marked] == [
        {"first": _CEILING},
        {"old": 100, "first": _CEILING - 100},
        *[{"first": _CEILING}] * (_CYCLE_COUNT - 2),
    ]
    in_order = support.execute(
        "select number from support.tickets where number like 'first%' order by first_response_due_at, id"
    )
    expected = [number for (number,) in in_order][: _CYCLE_COUNT * _CEILING - 100]
    assert [number for numbers in marked for number in numbers if number.startswith("first")] == expected

    received = [int(event.headers["outbox-seq"]) for event in read_events(kafka_settings)]
    assert sorted(received) == list(range(1, _CYCLE_COUNT * _CEILING + 1))

    memory = [outcome.memory_mb for outcome in outcomes]
    assert memory[-1] - memory[1] < _MEMORY_GROWTH_MB, memory
    assert max(memory) < _MEMORY_MB, memory


def test_tickets_added_to_a_backlog_are_marked_in_their_order(support: Support, cycle: Cycle) -> None:
    """Half a ceiling of tickets is added per cycle; each wave is marked after the earlier ones, and none is left."""
    cycle_input = CycleInput(batch_size=10, max_batches_per_cycle=2)
    waves = [f"wave{number}" for number in range(10)]
    add_overdue_tickets(support, waves[0], 140, due_hours_ago=24, now=NOW)
    for number, wave in enumerate(waves[1:], start=1):
        assert cycle(cycle_input).processed_count == cycle_input.ceiling
        add_overdue_tickets(support, wave, cycle_input.ceiling // 2, due_hours_ago=24 - number, now=NOW)
    while cycle(cycle_input).has_more:
        pass
    marked = [number.partition("-")[0] for numbers in _numbers_marked_by_cycle(support) for number in numbers]
    assert marked == [waves[0]] * 140 + [wave for wave in waves[1:] for _ in range(cycle_input.ceiling // 2)]
    assert support.execute("select count(*) from support.tickets where not sla_breached").fetchone() == (0,)


@pytest.mark.parametrize(
    ("batch_size", "max_batches", "overdue", "marked", "batches", "has_more"),
    [
        pytest.param(1, 1, 3, 1, 1, True, id="the minimum of both"),
        pytest.param(1, 200, 203, 200, 200, True, id="two hundred batches of one"),
        pytest.param(1000, 1, 1003, 1000, 1, True, id="one batch of a thousand"),
        pytest.param(1000, 200, 1003, 1003, 2, False, id="the maximum of both, with fewer tickets"),
        pytest.param(1000, 1, 1000, 1000, 1, True, id="exactly the ceiling: whether there is more is not known"),
        pytest.param(1000, 1, 999, 999, 1, False, id="one less than the ceiling"),
    ],
)
def test_the_ends_of_the_ranges(
    batch_size: int,
    max_batches: int,
    overdue: int,
    marked: int,
    batches: int,
    has_more: bool,
    support: Support,
    cycle: Cycle,
    events: Events,
) -> None:
    tickets = make_tickets(support, overdue, **FIRST_RESPONSE_OVERDUE)
    totals = cycle(CycleInput(batch_size, max_batches))
    assert (totals.processed_count, totals.batch_count, totals.has_more, totals.errors) == (
        marked,
        batches,
        has_more,
        [],
    )
    assert (totals.published_count, totals.backlog_count) == (marked, overdue - marked)
    assert breached_ids(support) == set(tickets[:marked])
    assert [event.ticket_id for event in events()] == tickets[:marked]
