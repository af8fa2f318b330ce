"""Records of another program on the event topic: every tool shows and counts them, none fails, publishing goes on."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner, Result

from sla_pipeline.cli import app
from sla_pipeline.errors import FailClosed
from sla_pipeline.event import TicketSlaBreachedKafkaEvent, event_headers
from sla_pipeline.kafka.events import read_events
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline_tests.integration.kafka.breach_records import BreachRecords, sequence_of
from sla_pipeline_tests.integration.kafka.conftest import Publish
from sla_pipeline_tests.integration.kafka.hanging_records import write_with_headers
from sla_pipeline_tests.integration.kafka.topic_administration import expire

_TICKET = "7d444840-9dc0-41d1-8245-5ffdce74fad2"
_OURS = event_headers(correlation_id="run-1", outbox_seq=3)
Foreign = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]
"""Key, value, headers."""
_FOREIGN: Sequence[Foreign] = [
    (b"key", b"not JSON \x1b[31m", []),
    (b"key", None, []),
    (None, b"", []),
    (None, b'{"a":1}', [("outbox-seq", b"007"), ("correlation-id", b"x")]),
    (b"\xff\x00", b"[1]", [("outbox-seq", "²".encode()), ("correlation-id", b"\xff")]),
    (_TICKET.encode(), '{"Number": "Ä"}'.encode("utf-16"), [("outbox-seq", None), ("correlation-id", None)]),
    (b"k" * 10_000, b"[" * 400_000, [("n" * 10_000, b"x")]),
]
_BY_BINARY_NAME = [(b"\xff\xfe", b"1")]
_FOREIGN_COUNT = len(_FOREIGN) + 1


pytestmark = pytest.mark.usefixtures("environment_of_commands")


def send(settings: KafkaSettings, *records: Foreign) -> None:
    """Plainly, as a foreign program does, into partition 0."""
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    for key, value, headers in records:
        producer.produce(settings.topic, value, key, partition=0, headers=[*headers])
    assert producer.flush(20) == 0


@pytest.fixture
def topic_of_others(kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish) -> KafkaSettings:
    """Foreign records of every kind, and five events before and five after them."""
    records.add(5)
    publish(kafka_settings)
    send(kafka_settings, *_FOREIGN)
    write_with_headers(kafka_settings, 0, _BY_BINARY_NAME)
    records.add(5)
    assert publish(kafka_settings).published_count == 5
    return kafka_settings


def tail(*options: str) -> Result:
    """Run `tail` from the beginning to the end."""
    result = CliRunner().invoke(app, ["tail", "--beginning", "--no-follow", *options])
    assert result.exit_code == 0, result.exception
    return result


def test_tail_shows_them_in_one_line_each_and_counts_them(topic_of_others: KafkaSettings) -> None:
    result = tail()
    assert len(result.stdout.splitlines()) == 10
    *shown, count = result.stderr.splitlines()
    assert count == f"records on the topic that were not breach events: {_FOREIGN_COUNT}"
    assert len(shown) == _FOREIGN_COUNT
    assert all(line.isprintable() and len(line) < 500 for line in shown)
    places, faults = zip(
        *((line.split(": ")[1], line.split(": ")[2].partition(" (")[0]) for line in shown), strict=True
    )
    assert all(place.startswith("partition 0, offset ") for place in places)
    assert faults == (
        "its value is not JSON in UTF-8",
        "its value is null or empty",
        "its value is null or empty",
        "its value does not keep to the contract in 'EventId', 'EventType', 'ContractVersion' and 13 more",
        "its value is not a JSON object",
        "its value is not JSON in UTF-8",
        "its value is not JSON in UTF-8",
        "its value is not JSON in UTF-8",
    )
    assert "(key b'\\xff\\x00', 3 bytes, headers 'outbox-seq', 'correlation-id')" in shown[4]


def test_tail_for_programs_prints_events_only_byte_for_byte(
    topic_of_others: KafkaSettings, records: BreachRecords
) -> None:
    lines = tail("--json").stdout_bytes.splitlines()
    assert sorted(lines) == sorted(payload.encode() for _, _, payload in records.expected())


def test_tail_quotes_the_values_of_an_event(kafka_settings: KafkaSettings, records: BreachRecords) -> None:
    """A number may hold anything; white space of JSON may hold line breaks."""
    records.add(1, ticket_ids=[_TICKET])
    fields = json.loads(records.expected()[0][2])
    fields["Number"] = "TCK\x1b[2J\n\u202e[b]"
    assert TicketSlaBreachedKafkaEvent.model_validate(fields)
    send(kafka_settings, (_TICKET.encode(), json.dumps(fields, indent=1, ensure_ascii=False).encode(), list(_OURS)))
    (line,) = tail().stdout.splitlines()
    assert "  'TCK\\x1b[2J\\n\\u202e[b]'  Resolution  High  due " in line
    assert line.endswith("seq 3")
    (only,) = tail("--json").stdout_bytes.splitlines()
    assert json.loads(only) == fields


def test_tail_escapes_what_the_terminal_cannot_show(kafka_settings: KafkaSettings, records: BreachRecords) -> None:
    records.add(1, ticket_ids=[_TICKET])
    payload = records.expected()[0][2].replace("TCK-1", "Ж-1")
    send(kafka_settings, (_TICKET.encode(), payload.encode(), list(_OURS)))
    command = [sys.executable, "-c", "from sla_pipeline.cli import main; main()", "tail", "--beginning", "--no-follow"]
    result = subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert b"  \\u0416-1  Resolution  High  due " in result.stdout
    result = subprocess.run(
        [*command, "--json"], check=True, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )
    assert result.stdout == payload.encode() + b"\n"


def test_an_event_is_ours_by_key_headers_and_ids_too(kafka_settings: KafkaSettings, records: BreachRecords) -> None:
    records.add(2)
    (_, ticket_id, payload), (_, other_id, _) = records.expected()
    send(
        kafka_settings,
        (other_id.encode(), payload.encode(), list(_OURS)),
        (ticket_id.encode(), payload.encode(), []),
        (
            ticket_id.encode(),
            payload.replace(f'"TicketId":"{ticket_id}"', f'"TicketId":"{other_id}"').encode(),
            list(_OURS),
        ),
    )
    result = tail()
    assert result.stdout == ""
    for line, fault in zip(
        result.stderr.splitlines()[:-1],
        (
            "its key is not its TicketId",
            "it has no header outbox-seq with a sequence",
            "its EventId or AggregateId is not that of its TicketId",
        ),
        strict=True,
    ):
        assert f": {fault} (" in line


def test_recover_counts_and_shows_them(topic_of_others: KafkaSettings) -> None:
    result = CliRunner().invoke(app, ["recover"])
    assert (result.exit_code, result.exception) == (0, None)
    assert "finding: Postgres and Kafka agree" in result.stdout
    assert f"10 breach events, the last with sequence 10; {_FOREIGN_COUNT} records of other programs" in result.stdout
    shown = [line for line in result.stdout.splitlines() if line.startswith("not a breach event: partition 0, offset ")]
    assert len(shown) == 3
    assert all(line.isprintable() and len(line) < 500 for line in shown)


def test_verify_counts_them_and_names_their_places(topic_of_others: KafkaSettings) -> None:
    result = CliRunner().invoke(app, ["verify", "--json"])
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    found = {finding["check"]: finding for finding in report["findings"]}
    assert found["event_without_sequence"]["count"] == _FOREIGN_COUNT
    assert {example["partition"] for example in found["event_without_sequence"]["examples"]} == {0}


_KEY, _VALUE = _TICKET.encode(), b"{}"


@pytest.mark.parametrize(
    ("key", "value", "run", "fault"),
    [
        (None, _VALUE, b"run", "its key is not the id of a ticket"),
        (b"\xff", _VALUE, b"run", "its key is not the id of a ticket"),
        (_KEY, None, b"run", "its value is null or empty"),
        (_KEY, b"\xff", b"run", "its value is not UTF-8"),
        (_KEY, _VALUE, b"\xff", "its header correlation-id is not UTF-8"),
    ],
)
def test_recover_names_an_event_that_cannot_be_read_and_goes_on_when_it_is_gone(
    key: bytes | None,
    value: bytes | None,
    run: bytes,
    fault: str,
    kafka_settings: KafkaSettings,
    records: BreachRecords,
    publish: Publish,
) -> None:
    """It may be a damaged event: then nothing can be decided, unless the intact event is on the topic too."""
    damaged = (key, value, [("outbox-seq", b"6"), ("correlation-id", run)])
    records.add(5)
    publish(kafka_settings)
    offset = sum(event.partition == 0 for event in read_events(kafka_settings))
    send(kafka_settings, damaged)
    result = CliRunner().invoke(app, ["recover"])
    assert result.exit_code == 3
    (reason,) = (line for line in result.stdout.splitlines() if line.startswith("reason: "))
    assert (
        f"offset {offset + bool(offset)} of topic {kafka_settings.topic} has the headers of the event with sequence "
        "6, which is" in reason
    )
    assert f"but {fault}: " in reason

    records.add(1)
    publish(kafka_settings)
    result = CliRunner().invoke(app, ["recover"])
    assert (result.exit_code, result.exception) == (0, None)
    assert f": {fault}; the event of its sequence 6 is elsewhere" in result.stdout


def test_the_remedy_for_an_event_that_cannot_be_read(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish
) -> None:
    records.add(5)
    publish(kafka_settings)
    send(kafka_settings, (_KEY, None, [("outbox-seq", b"6"), ("correlation-id", b"run")]))
    reason = CliRunner().invoke(app, ["recover"]).stdout.partition("reason: ")[2]
    up_to = int(reason.partition("kafka-delete-records.sh with offset ")[2].split()[0])
    expire(kafka_settings, {0: up_to})
    result = CliRunner().invoke(app, ["recover"])
    assert (result.exit_code, result.exception) == (0, None)
    assert "finding: Postgres and Kafka agree" in result.stdout


@pytest.mark.parametrize("copy_lags", [False, True])
def test_recover_goes_on_behind_a_foreign_record_on_the_progress_topic(
    copy_lags: bool, kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish
) -> None:
    """The publisher stops at it and names `recover`.

    `recover` writes a progress record behind it, with the position of the record before.
    """
    records.add(5)
    publish(kafka_settings)
    if copy_lags:
        # only the progress record proves these events now
        expire(kafka_settings, dict.fromkeys(range(3), -1))
        records.query("update support.ticket_sla_relay set published_seq = 3 where id = 1 returning id")
    producer = Producer({"bootstrap.servers": kafka_settings.bootstrap_servers})
    producer.produce(kafka_settings.progress_topic, b"[" * 100_000, b"somebody else", partition=0)
    assert producer.flush(20) == 0
    records.add(2)
    with pytest.raises(
        FailClosed, match=r"offset \d+ of topic .* is not a progress record of this package.*`sla-pipeline recover`"
    ):
        publish(kafka_settings)

    result = CliRunner().invoke(app, ["recover", "--yes"])
    assert (result.exit_code, result.exception) == (0, None)
    assert "behind it: offset " in result.stdout
    assert "repair: write a progress record with sequence 5" in result.stdout
    assert publish(kafka_settings).published_count == 2
    assert sorted(map(sequence_of, read_events(kafka_settings))) == ([6, 7] if copy_lags else [1, 2, 3, 4, 5, 6, 7])
    assert "finding: Postgres and Kafka agree" in CliRunner().invoke(app, ["recover"]).stdout
