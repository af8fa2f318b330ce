"""Totals of a cycle: one place for each number, from which metadata, journal row, JSON and line derive."""

import re

import pytest

from sla_pipeline.breach import BreachKind
from sla_pipeline.cycle import LISTED_COUNT, CycleTotals
from sla_pipeline.errors import CycleFailed, KafkaUnavailable, PostgresBusy
from sla_pipeline.set_aside import SetAside


def test_processed_is_the_sum_of_the_kinds() -> None:
    totals = CycleTotals()
    totals.add_marked({BreachKind.FIRST_RESPONSE: 2, BreachKind.RESOLUTION: 3})
    totals.add_marked({BreachKind.FIRST_RESPONSE: 1, BreachKind.RESOLUTION: 0})
    assert (totals.processed_count, totals.first_response_count, totals.resolution_count) == (6, 3, 3)
    assert CycleTotals().processed_count == 0


def test_each_number_is_in_the_row_by_its_own_name() -> None:
    totals = CycleTotals(claimed_count=7, first_response_count=2, resolution_count=3, published_count=9, mark_ms=1.5)
    totals.unknown_priorities.update({"Urgent": 2, "P1": 1})
    totals.set_aside = SetAside(4)
    totals.error_list.add("publishing failed")
    row = totals.as_row()
    assert row == {
        "claimed_count": 7,
        "first_response_count": 2,
        "resolution_count": 3,
        "processed_count": 5,
        "batch_count": 0,
        "lock_skip_count": 0,
        "flags_restored_count": 0,
        "published_count": 9,
        "transaction_count": 0,
        "backlog_count": None,
        "has_more": False,
        "publishing_stopped": False,
        "detected_count": 0,
        "late_count": 0,
        "claim_ms": None,
        "mark_ms": 1.5,
        "publish_ms": None,
        "duration_ms": None,
        "unknown_priority_count": 3,
        "set_aside_count": 4,
        "error_count": 1,
    }


def test_metadata_holds_the_numbers_that_are_known() -> None:
    metadata = CycleTotals(published_count=9, mark_ms=1.5).as_metadata()
    assert (metadata["published_count"], metadata["mark_ms"], metadata["has_more"]) == (9, 1.5, False)
    assert metadata.keys().isdisjoint({"backlog_count", "set_aside_count", "claim_ms", "publish_ms", "duration_ms"})


def test_a_row_of_the_journal_makes_the_same_line() -> None:
    totals = CycleTotals(first_response_count=2, resolution_count=1, batch_count=1, backlog_count=0, duration_ms=1234.5)
    line = (
        "3 marked (2 FirstResponse, 1 Resolution) in 1 batches, 0 published, backlog 0, 0 held by others, 0 errors, "
        "1.23 s"
    )
    assert totals.as_line() == line
    assert CycleTotals.from_row({**totals.as_row(), "id": 7, "state": "succeeded"}).as_line() == line


def test_the_most_frequent_unknown_priorities_are_listed_first_and_few() -> None:
    totals = CycleTotals()
    totals.unknown_priorities.update({f"P{number}": 1 for number in range(50)} | {"Urgent": 2})
    assert totals.frequent_unknown_priorities()[0] == "Urgent"
    assert len(totals.frequent_unknown_priorities()) == LISTED_COUNT


def test_a_cycle_without_errors_raises_nothing() -> None:
    CycleTotals().raise_if_failed()


@pytest.mark.parametrize(
    ("fault", "raised"),
    [(None, CycleFailed), (KafkaUnavailable("down"), KafkaUnavailable), (PostgresBusy(""), PostgresBusy)],
)
def test_errors_are_raised_as_the_class_of_the_fault_that_ended_a_step(
    fault: KafkaUnavailable | PostgresBusy | None, raised: type[Exception]
) -> None:
    totals = CycleTotals(fault=fault)
    totals.error_list.add("marking failed: x")
    totals.error_list.add_of_ticket("ticket TCK-1 set aside: y")
    with pytest.raises(raised, match=re.escape("marking failed: x; ticket TCK-1 set aside: y")) as caught:
        totals.raise_if_failed()
    assert type(caught.value) is raised
