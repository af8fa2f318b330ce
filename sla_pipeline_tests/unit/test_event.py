"""The wire contract, byte by byte (SPEC 4.4, 5.6)."""

import functools
import json
import re
import unicodedata
import uuid
from datetime import UTC, datetime, timedelta, timezone
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from sla_pipeline.breach import Breach, BreachKind, Priority
from sla_pipeline.event import (
    EVENT_TOPIC,
    TicketSlaBreachedKafkaEvent,
    event_headers,
    event_id,
    event_json,
    event_key,
    is_event_key,
    wire_timestamp,
)

_NOW = datetime(2026, 11, 30, 12, 0, 0, 5, tzinfo=UTC)
_SCHEMA_FILE = files("sla_pipeline").joinpath("event.schema.json")
_PASCAL_CASE = re.compile(r"[A-Z][A-Za-z]+")
_PRIORITY_MAX_LENGTH = 32


def _event(**overrides: Any) -> str:
    fields = {
        "ticket_id": "11111111-1111-4111-8111-111111111111",
        "number": "TCK-17",
        "tenant_id": "22222222-2222-4222-8222-222222222222",
        "queue_id": "33333333-3333-4333-8333-333333333333",
        "requester_user_id": "44444444-4444-4444-8444-444444444444",
        "assignee_user_id": None,
        "priority": "High",
        "now_utc": _NOW,
    }
    return event_json(Breach(BreachKind.FIRST_RESPONSE, _NOW - timedelta(minutes=1)), **fields | overrides)


def _is_date_time(text: object) -> bool:
    return not isinstance(text, str) or bool(datetime.fromisoformat(text))


@functools.cache
def _validator() -> Any:
    """Return a validator of the schema file that also checks formats, which is not the default."""
    schema = json.loads(_SCHEMA_FILE.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    formats = jsonschema.FormatChecker(["uuid"])
    formats.checks("date-time", raises=ValueError)(_is_date_time)
    return jsonschema.Draft202012Validator(schema, format_checker=formats)


def _faults(event: str) -> set[str]:
    """Return the paths of the fields that the schema file refuses."""
    return {error.json_path for error in _validator().iter_errors(json.loads(event))}


def test_the_bytes_of_an_event() -> None:
    assert _event(assignee_user_id="55555555-5555-4555-8555-555555555555") == (
        '{"EventId":"d989a986-274a-5b0c-a1c8-eb27fa32a4b8","EventType":"TicketSlaBreachedKafkaEvent","ContractVersion":1,'
        '"AggregateType":"Ticket","AggregateId":"11111111-1111-4111-8111-111111111111",'
        '"TicketId":"11111111-1111-4111-8111-111111111111","Number":"TCK-17","TenantId":"22222222-2222-4222-8222-222222222222",'
        '"QueueId":"33333333-3333-4333-8333-333333333333","RequesterUserId":"44444444-4444-4444-8444-444444444444",'
        '"AssigneeUserId":"55555555-5555-4555-8555-555555555555","Priority":"High","BreachKind":"FirstResponse",'
        '"DueAt":"2026-11-30T11:59:00.000005Z","BreachedAt":"2026-11-30T12:00:00.000005Z"}'
    )


def test_schema_file_equals_the_model() -> None:
    """To write the file again: json.dumps(TicketSlaBreachedKafkaEvent.model_json_schema(), indent=2)."""
    assert json.loads(_SCHEMA_FILE.read_text()) == TicketSlaBreachedKafkaEvent.model_json_schema()


# Moments keep a day from either end of the calendar: in UTC a moment may lie hours before or after its own zone's time.
_moments = st.datetimes(
    min_value=datetime(1, 1, 2),  # noqa: DTZ001 - Hypothesis adds the zone
    max_value=datetime(9999, 12, 30),  # noqa: DTZ001
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=-9, minutes=-30)), timezone(timedelta(hours=14))]),
)


_uuids = st.uuids().map(str)
_breaches = st.builds(Breach, st.sampled_from(list(BreachKind)), _moments)
# Valid priorities: bidirectional controls, line separators, a zero width space, a combining mark and a flag of two
# characters are not of category Cc.
_ODD_PRIORITIES = [
    "Urgent",
    "high",
    "Срочно",
    " ",
    "\u202eHigh",
    "\u2028",
    "\u2029",
    "\u200b",
    "e\u0301",
    "\U0001f1e9\U0001f1ea",
    '"',
    "\\",
    "</b>",
]
_CONTROL_CHARACTERS = [*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0))]


def _fields(number: st.SearchStrategy[str], priority: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for the arguments of ``event_json``, beside the breach."""
    ids = dict.fromkeys(("ticket_id", "tenant_id", "queue_id", "requester_user_id"), _uuids)
    return st.fixed_dictionaries(
        {**ids, "assignee_user_id": st.none() | _uuids, "number": number, "priority": priority, "now_utc": _moments}
    )


@settings(deadline=None, max_examples=100)
@given(
    breach=_breaches,
    fields=_fields(
        st.text(min_size=1, max_size=64).filter(lambda text: text.isprintable()),
        st.sampled_from([*Priority, *_ODD_PRIORITIES])
        | st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=_PRIORITY_MAX_LENGTH),
    ),
)
def test_every_event_fits_the_schema_and_the_model(breach: Breach, fields: dict[str, Any]) -> None:
    text = event_json(breach, **fields)
    assert _faults(text) == set()
    assert TicketSlaBreachedKafkaEvent.model_validate_json(text).model_dump_json() == text
    sent = json.loads(text)
    assert all(_PASCAL_CASE.fullmatch(name) for name in sent)
    assert [datetime.fromisoformat(sent[name]) for name in ("DueAt", "BreachedAt")] == [
        breach.due_at,
        fields["now_utc"],
    ]


@settings(deadline=None, max_examples=300)
@given(
    breach=_breaches,
    fields=_fields(
        # These texts include quotes, control characters, line breaks, halves of surrogate pairs, empty and long texts.
        st.text(max_size=70) | st.text(st.characters(codec="utf-8"), max_size=70),
        st.sampled_from([*Priority, *_ODD_PRIORITIES, "", None, 1])
        | st.text(max_size=40)
        | st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=40)
        | st.sampled_from(_CONTROL_CHARACTERS).map(lambda character: f"Hi{character}gh"),
    ),
    missing=st.sampled_from([None, None, "tenant_id", "queue_id", "requester_user_id"]),
)
def test_an_event_is_the_standard_librarys_compact_json_or_refused(
    breach: Breach, fields: dict[str, Any], missing: str | None
) -> None:
    """Names, order and escapes are written out here a second time: the bytes must not change with a library."""
    if missing:
        fields[missing] = None
    refused = {missing} if missing else set()
    if not _is_text(fields["number"], 64):
        refused.add("number")
    if not _is_text(fields["priority"], 32) or set(_CONTROL_CHARACTERS) & set(fields["priority"]):
        refused.add("priority")
    if refused:
        with pytest.raises(ValidationError) as raised:
            event_json(breach, **fields)
        assert {fault["loc"][0] for fault in raised.value.errors()} == refused
        return
    text = event_json(breach, **fields)
    values = {
        "EventId": str(uuid.uuid5(uuid.uuid5(uuid.NAMESPACE_URL, f"urn:{EVENT_TOPIC}"), fields["ticket_id"])),
        "EventType": "TicketSlaBreachedKafkaEvent",
        "ContractVersion": 1,
        "AggregateType": "Ticket",
        "AggregateId": fields["ticket_id"],
        "TicketId": fields["ticket_id"],
        "Number": fields["number"],
        "TenantId": fields["tenant_id"],
        "QueueId": fields["queue_id"],
        "RequesterUserId": fields["requester_user_id"],
        "AssigneeUserId": fields["assignee_user_id"],
        "Priority": fields["priority"],
        "BreachKind": breach.kind.value,
        "DueAt": f"{breach.due_at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z",
        "BreachedAt": f"{fields['now_utc'].astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z",
    }
    assert text == json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    # Marking sends events as the lines of one text.
    assert "\n" not in text


def _is_text(value: object, max_length: int) -> bool:
    """Return whether the value is a text of 1 to ``max_length`` characters that UTF-8 can encode."""
    return (
        isinstance(value, str)
        and 1 <= len(value) <= max_length
        and not any("\ud800" <= character <= "\udfff" for character in value)
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("TicketId", "not-a-uuid"),
        ("TicketId", "11111111-1111-4111-8111-11111111111A"),
        ("AssigneeUserId", ""),
        ("DueAt", "2026-11-30T12:00:00Z"),
        ("DueAt", "2026-11-30T12:00:00.000000+00:00"),
        ("BreachedAt", "2026-11-30 12:00:00.000000Z"),
        ("Priority", None),
        ("Priority", ""),
        ("Priority", "X" * 33),
        ("Priority", 3),
        ("Priority", "High\n"),
        ("Priority", "\x00"),
        ("Priority", "Hi\x85gh"),
        ("BreachKind", "Both"),
        ("Number", ""),
        ("Number", "X" * 65),
        ("ContractVersion", 2),
        ("EventType", "TicketClosed"),
        ("AggregateType", "Queue"),
        ("QueueId", None),
        ("RequesterEmail", "anna@example.org"),
    ],
)
def test_schema_and_model_refuse_alike(field: str, value: object) -> None:
    altered = json.dumps(json.loads(_event()) | {field: value})
    assert _faults(altered) == {f"$.{field}" if field != "RequesterEmail" else "$"}
    with pytest.raises(ValidationError) as raised:
        TicketSlaBreachedKafkaEvent.model_validate_json(altered)
    assert raised.value.error_count() == 1
    # This text goes into the pipeline's log.
    assert "anna@example.org" not in str(raised.value)


@pytest.mark.parametrize(
    "priority", [*_ODD_PRIORITIES, "X" * _PRIORITY_MAX_LENGTH, "\U0001f600" * _PRIORITY_MAX_LENGTH]
)
def test_schema_and_model_accept_an_unknown_priority(priority: str) -> None:
    text = _event(priority=priority)
    assert json.loads(text)["Priority"] == priority
    assert _faults(text) == set()


@pytest.mark.parametrize("character", _CONTROL_CHARACTERS)
def test_schema_and_model_refuse_every_control_character_in_a_priority(character: str) -> None:
    """Model and schema, by an independent validator, refuse all of Unicode's category Cc."""
    assert unicodedata.category(character) == "Cc"
    for priority in (character, f"{character}High", f"High{character}", f"Hi{character}gh"):
        assert _faults(json.dumps(json.loads(_event()) | {"Priority": priority})) == {"$.Priority"}
        with pytest.raises(ValidationError) as raised:
            _event(priority=priority)
        assert [fault["type"] for fault in raised.value.errors()] == ["control_character"]


def test_the_control_characters_are_all_of_unicodes() -> None:
    assert [
        character for character in map(chr, range(0x110000)) if unicodedata.category(character) == "Cc"
    ] == _CONTROL_CHARACTERS


def test_an_impossible_date_is_refused_by_the_schemas_format() -> None:
    altered = json.dumps(json.loads(_event()) | {"DueAt": "2026-13-45T12:00:00.000000Z"})
    assert _faults(altered) == {"$.DueAt"}


@pytest.mark.parametrize("field", list(json.loads(_event())))
def test_every_field_is_required(field: str) -> None:
    fields = json.loads(_event())
    del fields[field]
    assert _faults(json.dumps(fields)) == {"$"}
    with pytest.raises(ValidationError):
        TicketSlaBreachedKafkaEvent.model_validate_json(json.dumps(fields))


def test_no_field_can_carry_a_persons_text() -> None:
    """SPEC 4.4: ids, enums, timestamps; number and priority are the only texts, and bounded."""
    schema = TicketSlaBreachedKafkaEvent.model_json_schema()
    free_text = []
    for name, field in schema["properties"].items():
        alternatives = [
            schema["$defs"][part["$ref"].rsplit("/", 1)[1]] if "$ref" in part else part
            for part in field.get("anyOf", [field])
        ]
        if not all({"enum", "const", "pattern"} & part.keys() or part.get("type") == "null" for part in alternatives):
            free_text.append(name)
    assert {name: schema["properties"][name]["maxLength"] for name in free_text} == {
        "Number": 64,
        "Priority": _PRIORITY_MAX_LENGTH,
    }
    # The schema lists known priorities for people and allows others: the support service owns the list.
    assert schema["properties"]["Priority"]["examples"] == list(Priority)
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(json.loads(_event()))


@settings(deadline=None)
@given(st.uuids())
def test_event_id_is_the_standards_uuid_version_5(ticket_id: uuid.UUID) -> None:
    namespace = uuid.uuid5(uuid.NAMESPACE_URL, f"urn:{EVENT_TOPIC}")
    assert event_id(str(ticket_id)) == str(uuid.uuid5(namespace, str(ticket_id)))


def test_event_id_depends_on_the_ticket_alone() -> None:
    first, same, other = (
        json.loads(event)["EventId"]
        for event in (
            _event(),
            _event(priority="Low", now_utc=_NOW + timedelta(days=1)),
            _event(ticket_id="11111111-1111-4111-8111-111111111112"),
        )
    )
    assert first == same
    assert first != other


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (datetime(2026, 11, 30, 12, tzinfo=UTC), "2026-11-30T12:00:00.000000Z"),
        (datetime(2026, 11, 30, 12, 0, 0, 1, tzinfo=UTC), "2026-11-30T12:00:00.000001Z"),
        (datetime(2026, 11, 30, 0, 30, tzinfo=timezone(timedelta(hours=1))), "2026-11-29T23:30:00.000000Z"),
        (datetime(1, 1, 2, tzinfo=UTC), "0001-01-02T00:00:00.000000Z"),
        (datetime.max.replace(tzinfo=UTC), "9999-12-31T23:59:59.999999Z"),
    ],
)
def test_timestamps_have_six_digits_and_z(moment: datetime, text: str) -> None:
    assert wire_timestamp(moment) == text


def test_key_and_headers() -> None:
    assert event_key("11111111-1111-4111-8111-111111111111") == b"11111111-1111-4111-8111-111111111111"
    assert event_headers(correlation_id="run-1", outbox_seq=42) == [
        ("event-type", b"TicketSlaBreachedKafkaEvent"),
        ("contract-version", b"1"),
        ("correlation-id", b"run-1"),
        ("outbox-seq", b"42"),
        ("content-type", b"application/json"),
    ]


@pytest.mark.parametrize(
    ("key", "is_id"),
    [
        (b"11111111-1111-4111-8111-11111111111a", True),
        (b"11111111-1111-4111-8111-11111111111A", False),
        (b"11111111-1111-4111-8111-11111111111a\n", False),
        (b" 11111111-1111-4111-8111-11111111111a", False),
        (b"111111111111411181111111111111aa", False),
        ("1111111\u0661-1111-4111-8111-111111111111".encode(), False),
        (b"", False),
    ],
)
def test_a_key_is_a_tickets_id_in_one_spelling_only(key: bytes, is_id: bool) -> None:
    assert is_event_key(key) is is_id
