"""Checks of one message or record against the contract."""

import json

import pytest

from sla_pipeline.audit.contract import (
    claimed_ticket_id,
    has_constant_headers,
    is_record_sound,
    sequence_of,
    ticket_id_in,
    valid_event,
)
from sla_pipeline_tests.unit.audit.rows import event_of, record, with_headers, without_header

TICKET = "0a11ce00-0000-4000-8000-00000000000f"
OTHER = "0b0b0000-0000-4000-8000-000000000002"


@pytest.mark.parametrize(("text", "seq"), [(b"1", 1), (b"42", 42), (b"9" * 18, 10**18 - 1)])
def test_a_sequence_is_a_whole_number_from_one(text: bytes, seq: int) -> None:
    assert sequence_of({"outbox-seq": text}) == seq


@pytest.mark.parametrize(
    "text", [None, b"", b"0", b"-1", b"+1", b"01", b"1.0", b" 1", b"1\n", b"1_0", b"one", b"9" * 19, "\u0661".encode()]
)
def test_anything_else_is_no_sequence(text: bytes | None) -> None:
    assert sequence_of({"outbox-seq": text}) is None
    assert sequence_of({}) is None


def test_a_ticket_s_id_has_one_spelling() -> None:
    assert ticket_id_in(TICKET.encode()) == TICKET
    for spelling in (TICKET.upper(), TICKET.replace("-", ""), f"{{{TICKET}}}", f"{TICKET}\n", TICKET[:-1], ""):
        assert ticket_id_in(spelling.encode()) is None
    assert ticket_id_in(None) is None


def test_a_payload_by_the_contract_is_valid() -> None:
    row = record(1)
    event = valid_event(row.payload)
    assert event is not None
    assert event.ticket_id == row.ticket_id


@pytest.mark.parametrize("priority", ["Urgent", "Срочно", "\u2028", "\u202e", "X" * 32])
def test_an_unknown_priority_keeps_to_the_contract(priority: str) -> None:
    event = valid_event(json.dumps({**json.loads(record(1).payload), "Priority": priority}))
    assert event is not None
    assert event.priority == priority


@pytest.mark.parametrize(
    "changes",
    [
        {"TicketId": OTHER},
        {"AggregateId": OTHER},
        {"EventId": OTHER},
        {"EventType": "Another"},
        {"ContractVersion": 2},
        {"Priority": ""},
        {"Priority": None},
        {"Priority": "X" * 33},
        {"Priority": "High\n"},
        {"Priority": "\u009b2J"},
        {"BreachKind": "Both"},
        {"DueAt": "2026-11-30T12:00:00Z"},
        {"Number": ""},
        {"Further": "field"},
        {"QueueId": None},
    ],
)
def test_a_payload_that_breaks_the_contract_is_not(changes: dict[str, object]) -> None:
    assert valid_event(json.dumps({**json.loads(record(1).payload), **changes})) is None


def test_the_model_s_own_names_are_none_of_the_contract() -> None:
    event = valid_event(record(1).payload)
    assert event is not None
    assert valid_event(json.dumps(event.model_dump(mode="json", by_alias=False))) is None


@pytest.mark.parametrize("value", [None, b"", b"null", b"[]", b"\xff", b"{", b"[" * 100_000])
def test_a_payload_that_is_no_event_raises_no_error(value: bytes | None) -> None:
    assert valid_event(value) is None
    event = event_of(record(1), value=value)
    # the payload has no ticket, the key has
    assert claimed_ticket_id(event) == record(1).ticket_id


def test_the_ticket_in_the_payload_takes_precedence_over_the_key() -> None:
    event = event_of(record(1), key=OTHER.encode())
    assert claimed_ticket_id(event) == record(1).ticket_id
    assert claimed_ticket_id(event._replace(value=b'{"TicketId": "\\ud800"}', key=b"nobody")) is None


def test_the_constant_headers_are_part_of_the_contract() -> None:
    event = event_of(record(1))
    assert has_constant_headers(event)
    assert has_constant_headers(with_headers(event, traceparent=b"00-ab"))
    for name in ("event-type", "contract-version", "content-type"):
        assert not has_constant_headers(without_header(event, name))
        assert not has_constant_headers(event._replace(headers={**event.headers, name: b"other"}))


@pytest.mark.parametrize(
    "changes",
    [
        {"ticket_id": OTHER},
        {"number": "TCK-9"},
        {"kind": "FirstResponse"},
        {"due_at": None},
        {"breached_at": "2026"},
        {"payload": "{}"},
    ],
)
def test_a_record_is_sound_when_its_columns_equal_its_payload(changes: dict[str, object]) -> None:
    assert is_record_sound(record(1))
    assert not is_record_sound(record(1)._replace(**changes))  # type: ignore[arg-type]
