"""Timeline of disruptions drawn from a seed."""

from collections import Counter

from sla_pipeline.kafka.relay import STEPS
from sla_pipeline_tests.chaos.disruptions import Cut, Kill, Outage, Pause, Scenario, timeline

MARKING_STEPS = ("claimed", "batch_locked", "batch_written", "batch_committed")


def test_a_seed_draws_the_same_timeline_again_and_another_seed_another_one() -> None:
    assert timeline(Scenario(7)) == timeline(Scenario(7))
    assert timeline(Scenario(7)) != timeline(Scenario(8))


def test_a_timeline_is_in_order_and_within_the_run() -> None:
    times = [disruption.at for disruption in timeline(Scenario(7, seconds=240))]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] <= 240


def test_a_long_run_kills_at_every_step_at_random_and_during_commits() -> None:
    kills = [item for item in timeline(Scenario(7, kills=200)) if isinstance(item, Kill)]
    assert len(kills) == 200
    moments = Counter(kill.moment for kill in kills)
    assert moments.keys() == {
        "random",
        *MARKING_STEPS,
        *STEPS,
        "just after flushed",
        "just after batch_written",
        "just after rows_read",
    }
    assert min(moments["batch_committed"], moments["produced"], moments["committed"]) >= 10


def test_a_long_run_pauses_longer_than_the_lock_and_than_the_transaction_live() -> None:
    pauses = [item for item in timeline(Scenario(7, seconds=240)) if isinstance(item, Pause) and item.seconds]
    assert len(pauses) == 4
    assert {item.cut for item in pauses} == {True, False}
    assert max(item.seconds for item in pauses) > 30
    assert min(item.seconds for item in pauses) > 15


def test_the_short_run_has_one_pause_beyond_the_transaction_timeout_and_each_outage_once() -> None:
    short = timeline(Scenario(7, seconds=45, kills=30))
    assert [item.seconds > 30 for item in short if isinstance(item, Pause) and item.seconds] == [True]
    assert {(item.server, item.how) for item in short if isinstance(item, Outage)} == {
        ("kafka", "kill"),
        ("postgres", "fast"),
        ("postgres", "immediate"),
    }
    assert any(isinstance(item, Cut) for item in short)
    assert {"batch_committed", "produced", "committed"} <= {item.step for item in short if isinstance(item, Kill)}


def test_the_short_run_brings_zombies_back_right_after_their_successor_has_read_its_position() -> None:
    short = timeline(Scenario(7, seconds=35, outages=False))
    encounters = [(item.step, item.until) for item in short if isinstance(item, Pause) and item.until]
    assert (
        sum(
            until == "progress_read" and step in ("rows_read", "begun", "produced", "flushed")
            for step, until in encounters
        )
        >= 5
    )
