"""The comparison at the end of a demo finds each way in which tickets, records and events can differ, and names the tickets."""

import io
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer
from rich.console import Console

from sla_pipeline.breach import BreachKind
from sla_pipeline.demo.comparison import Comparison, compare
from sla_pipeline.kafka.events import read_events
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline_tests.integration.conftest import Cycle
from sla_pipeline_tests.tickets import FIRST_RESPONSE_OVERDUE, RESOLUTION_OVERDUE, make_ticket

NO_DIFFERENCE: dict[str, tuple[str, ...]] = {
    "marked, no breach record": (),
    "breach record, not marked": (),
    "breach record, no event": (),
    "event, no breach record": (),
    "event published more than once": (),
    "event unlike its record": (),
}


@pytest.fixture
def three_breaches(support: psycopg.Connection[Any], cycle: Cycle) -> dict[str, str]:
    """The ids of T1 and T2 (first response) and T3 (resolution), marked and published, beside a ticket that is not overdue."""
    ids = {number: make_ticket(support, number=number, **FIRST_RESPONSE_OVERDUE) for number in ("T1", "T2")}
    ids["T3"] = make_ticket(support, number="T3", **RESOLUTION_OVERDUE)
    ids["T4"] = make_ticket(support, number="T4")
    assert cycle().published == 3
    return ids


@pytest.fixture
def compared(owner_url: str, kafka_settings: KafkaSettings) -> Any:
    return lambda: compare(owner_url, kafka_settings)


def shown(comparison: Comparison) -> str:
    text = io.StringIO()
    Console(width=200, file=text).print(comparison.as_table())
    return text.getvalue()


def test_a_new_installation_agrees(compared: Any) -> None:
    comparison = compared()
    assert (comparison.marked_count, comparison.event_count, comparison.agree) == (0, 0, True)
    assert comparison.differences == NO_DIFFERENCE


def test_marks_records_and_events_of_a_cycle_agree(compared: Any, three_breaches: dict[str, str]) -> None:
    comparison = compared()
    assert comparison == Comparison(
        marked_count=3,
        records_by_kind={BreachKind.FIRST_RESPONSE: 2, BreachKind.RESOLUTION: 1},
        events_by_kind={BreachKind.FIRST_RESPONSE: 2, BreachKind.RESOLUTION: 1},
        event_count=3,
        differences=NO_DIFFERENCE,
    )
    assert comparison.agree
    assert "they agree" in shown(comparison)


@pytest.mark.parametrize(
    ("tampering", "differences"),
    [
        ("update support.tickets set sla_breached = true where number = 'T4'", {"marked, no breach record": ("T4",)}),
        ("update support.tickets set sla_breached = false where number <> 'T2'", {"breach record, not marked": ("T1", "T3")}),
        (
            "delete from support.ticket_sla_breaches where number = 'T1'",
            {"marked, no breach record": ("T1",), "event, no breach record": ("T1",)},
        ),
        (
            "insert into support.ticket_sla_breaches (seq, ticket_id, number, kind, due_at, breached_at, correlation_id, payload)"
            " select 4, id, number, 'Resolution', now(), now(), '', '' from support.tickets where number = 'T4'",
            {"breach record, not marked": ("T4",), "breach record, no event": ("T4",)},
        ),
        (
            "update support.ticket_sla_breaches set payload = replace(payload, 'Normal', 'Low') where number = 'T3'",
            {"event unlike its record": ("T3",)},
        ),
    ],
)
def test_each_difference_is_found_and_names_its_tickets(
    compared: Any, three_breaches: dict[str, str], support: psycopg.Connection[Any], tampering: str, differences: dict[str, tuple[str, ...]]
) -> None:
    support.execute(tampering.encode())
    comparison = compared()
    assert comparison.differences == NO_DIFFERENCE | differences
    assert not comparison.agree
    text = shown(comparison)
    assert "they DO NOT agree" in text
    assert all(number in text for numbers in differences.values() for number in numbers)


def test_an_event_that_is_on_the_topic_twice_is_found(compared: Any, three_breaches: dict[str, str], kafka_settings: KafkaSettings) -> None:
    first = next(event for event in read_events(kafka_settings) if event.key.decode() == three_breaches["T2"])
    intruder = Producer({"bootstrap.servers": kafka_settings.bootstrap_servers})
    intruder.produce(kafka_settings.topic, first.value, first.key)
    assert intruder.flush(20) == 0
    comparison = compared()
    assert comparison.differences == NO_DIFFERENCE | {"event published more than once": ("T2",)}
    assert (comparison.event_count, comparison.agree) == (4, False)
