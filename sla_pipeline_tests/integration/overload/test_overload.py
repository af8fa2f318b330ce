"""More overdue tickets than a cycle may mark: what each cycle takes, in which order, at what cost in memory (SPEC 3.2,
3.5, 5.3, 5.7).

The order is that of ``(first_response_due_at, id)``, not that of coming: a ticket that comes into a backlog waits until
all that were due before it are marked, and one that was due before them all is next. So nothing is starved as long as
cycles mark more than comes in.
"""

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from sla_pipeline.cycle import BATCH_SIZE, MAX_BATCHES_PER_CYCLE, CycleInput
from sla_pipeline.kafka.events import read_events
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline_tests.benchmarks.overload import come_overdue
from sla_pipeline_tests.benchmarks.overload_process import Worker
from sla_pipeline_tests.integration.conftest import Cycle, Events
from sla_pipeline_tests.tickets import FIRST_RESPONSE_OVERDUE, NOW, breached_ids, make_tickets

Support = psycopg.Connection[Any]
_CEILING = BATCH_SIZE.default * MAX_BATCHES_PER_CYCLE.default
_BACKLOG = 200_000
_CYCLE_COUNT = 4
# a cycle's ids, rows and payloads, kept by mistake, would be some 20 MB for each cycle
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
    # the worker goes by the system's clock
    now = datetime.now(UTC)
    come_overdue(support, "first", _BACKLOG, due_hours_ago=24, now=now)
    support.execute("vacuum analyze support.tickets")
    outcomes = []
    with Worker(worker_url, kafka_settings) as worker:
        outcomes.append(worker.cycle())
        # a thousand that became overdue a moment ago, and a hundred, moved here from elsewhere, that were due before
        # all others
        come_overdue(support, "new", 1_000, due_hours_ago=1, now=now)
        come_overdue(support, "old", 100, due_hours_ago=240, now=now)
        outcomes += [worker.cycle() for _ in range(_CYCLE_COUNT - 1)]

    assert [outcome.errors for outcome in outcomes] == [[]] * _CYCLE_COUNT
    assert [outcome.marked for outcome in outcomes] == [_CEILING] * _CYCLE_COUNT
    assert [outcome.published for outcome in outcomes] == [_CEILING] * _CYCLE_COUNT
    assert all(outcome.has_more for outcome in outcomes)
    come = [_BACKLOG, *[_BACKLOG + 1_100] * (_CYCLE_COUNT - 1)]
    assert [outcome.backlog for outcome in outcomes] == [
        total - (cycle + 1) * _CEILING for cycle, total in enumerate(come)
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


def test_what_comes_into_a_backlog_is_taken_in_its_turn(support: Support, cycle: Cycle) -> None:
    """Every cycle half a ceiling comes in; each wave is marked after those that were due before it, and none is
    left.
    """
    given = CycleInput(batch_size=10, max_batches_per_cycle=2)
    waves = [f"wave{number}" for number in range(10)]
    come_overdue(support, waves[0], 140, due_hours_ago=24, now=NOW)
    for number, wave in enumerate(waves[1:], start=1):
        assert cycle(given).processed_count == given.ceiling
        come_overdue(support, wave, given.ceiling // 2, due_hours_ago=24 - number, now=NOW)
    while cycle(given).has_more:
        pass
    marked = [number.partition("-")[0] for numbers in _numbers_marked_by_cycle(support) for number in numbers]
    assert marked == [waves[0]] * 140 + [wave for wave in waves[1:] for _ in range(given.ceiling // 2)]
    assert support.execute("select count(*) from support.tickets where not sla_breached").fetchone() == (0,)


@pytest.mark.parametrize(
    ("batch_size", "max_batches", "overdue", "marked", "batches", "has_more"),
    [
        pytest.param(1, 1, 3, 1, 1, True, id="the least of both"),
        pytest.param(1, 200, 203, 200, 200, True, id="two hundred batches of one"),
        pytest.param(1000, 1, 1003, 1000, 1, True, id="one batch of a thousand"),
        pytest.param(1000, 200, 1003, 1003, 2, False, id="the most of both, with less to do"),
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
    report = cycle(CycleInput(batch_size, max_batches))
    assert (report.processed_count, report.batch_count, report.has_more, report.errors) == (
        marked,
        batches,
        has_more,
        [],
    )
    assert (report.published_count, report.backlog_count) == (marked, overdue - marked)
    assert breached_ids(support) == set(tickets[:marked])
    assert [event.ticket_id for event in events()] == tickets[:marked]
