"""A slow link, or a broker that answers late: each cycle publishes what it can in its time, until none waits."""

import os
import time

import pytest

from sla_pipeline.cycle import SimulatedClock
from sla_pipeline.kafka.relay import Relay
from sla_pipeline.monitor.runner import run_cycle
from sla_pipeline.postgres.database import Database
from sla_pipeline_tests.conftest import BrokerFactory
from sla_pipeline_tests.integration.kafka.breach_records import BreachRecords
from sla_pipeline_tests.integration.kafka.conftest import Publish
from sla_pipeline_tests.integration.kafka.slow_link import broker_behind
from sla_pipeline_tests.tickets import NOW

# the whole: 10,000 records at each speed, as long as it takes; the usual test takes a part of them at one speed
WHOLE = os.environ.get("SLA_TEST_SLOW_LINKS") == "1"
SPEEDS = (
    [(400_000, 10_000, 20.0), (150_000, 10_000, 20.0), (30_000, 10_000, 20.0)] if WHOLE else [(150_000, 2_500, 6.0)]
)

pytestmark = pytest.mark.timeout(1_800 if WHOLE else 300)


@pytest.mark.parametrize(("bytes_per_second", "count", "seconds"), SPEEDS)
def test_every_cycle_publishes_what_the_link_carries_until_the_backlog_is_gone(
    bytes_per_second: int,
    count: int,
    seconds: float,
    own_broker: BrokerFactory,
    records: BreachRecords,
    publish: Publish,
) -> None:
    records.add(count)
    cycles: list[tuple[int, float]] = []
    with broker_behind(own_broker) as (link, settings):
        link.bytes_per_second = bytes_per_second
        while sum(published for published, _ in cycles) < count:
            began = time.monotonic()
            published = publish(settings, seconds=seconds).published_count
            cycles.append((published, round(time.monotonic() - began, 1)))
            assert published > 0, cycles
            assert cycles[-1][1] <= seconds, cycles
        link.bytes_per_second = 0
        records.assert_each_published_once_in_order(settings)
    print(f"\n{bytes_per_second:,} bytes/s: {len(cycles)} cycles, {sum(took for _, took in cycles):.0f} s; {cycles}")  # noqa: T201
    # more than one, or the link was not what bounded them
    assert len(cycles) > 1
    assert records.positions() == (count, count)


def test_a_link_that_becomes_slower_within_a_transaction_is_tried_again_with_less(
    own_broker: BrokerFactory, records: BreachRecords, publish: Publish
) -> None:
    records.add(3_000)
    with broker_behind(own_broker) as (link, settings):

        def slow_down(step: str) -> None:
            if step == "produced":
                # the last step, and the largest, is on its way
                link.bytes_per_second = 30_000

        link.bytes_per_second = 1_000_000
        began = time.monotonic()
        totals = publish(settings, on_step=slow_down)
        assert time.monotonic() - began < 21
        assert (totals.transaction_count, totals.published_count > 0) == (1, True)
        link.bytes_per_second = 0
        publish(settings)
        records.assert_each_published_once_in_order(settings)


def test_a_cycle_with_a_broker_that_answers_each_call_late_ends_within_thirty_seconds(
    own_broker: BrokerFactory, records: BreachRecords, database: Database
) -> None:
    """The whole cycle: topic check, publishing and all."""
    with broker_behind(own_broker) as (link, settings), Relay(settings) as relay:
        for delay_seconds in (0.3, 1.4):
            records.add(10)
            link.answer_delay_seconds = delay_seconds
            began = time.monotonic()
            report = run_cycle(database, relay, clock=SimulatedClock(NOW))
            assert time.monotonic() - began < 30, delay_seconds
            relay.close()
            figures = f"published {report.published_count}, {report.publish_ms:.0f} ms, {report.errors}"
            print(f"\nanswers {delay_seconds} s late: {figures}")  # noqa: T201
        link.answer_delay_seconds = 0
        run_cycle(database, relay, clock=SimulatedClock(NOW)).raise_if_failed()
        records.assert_each_published_once_in_order(settings)
