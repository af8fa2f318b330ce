"""Compression of events on the broker: by default none, so that every client can read them."""

from pathlib import Path

import pytest

from sla_pipeline.embedded import EmbeddedKafka
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import create_topics
from sla_pipeline_tests.conftest import BrokerFactory
from sla_pipeline_tests.integration.kafka.breach_records import BreachRecords
from sla_pipeline_tests.integration.kafka.conftest import Publish

# a record batch: offset (8 bytes), length of what follows (4), leader epoch (4), magic (1), checksum (4), attributes
# (2)
_LENGTH_AT, _HEAD_BYTES, _ATTRIBUTES_AT = 8, 12, 21
_CODEC_BITS, _CONTROL_BIT = 0x07, 0x20
_CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def codecs_on_disk(broker: EmbeddedKafka, topic: str) -> set[str]:
    """Codecs of the topic's record batches, read from the broker's own files; transaction markers aside."""
    found = set()
    for segment in Path(broker.service.log).parent.glob(f"kafka/data/{topic}-*/*.log"):
        data = segment.read_bytes()
        while data:
            attributes = int.from_bytes(data[_ATTRIBUTES_AT : _ATTRIBUTES_AT + 2])
            if not attributes & _CONTROL_BIT:
                found.add(_CODECS[attributes & _CODEC_BITS])
            data = data[_HEAD_BYTES + int.from_bytes(data[_LENGTH_AT:_HEAD_BYTES]) :]
    return found


@pytest.mark.parametrize(
    ("client_config", "codec"),
    [({}, "none"), ({"compression.type": "gzip"}, "gzip"), ({"compression.codec": "zstd"}, "zstd")],
)
def test_events_are_not_compressed_unless_the_settings_say_so(
    client_config: dict[str, str], codec: str, own_broker: BrokerFactory, records: BreachRecords, publish: Publish
) -> None:
    broker = own_broker()
    settings = KafkaSettings(broker.bootstrap_servers, client_config=client_config)
    create_topics(settings)
    records.add(500)
    publish(settings)
    assert codecs_on_disk(broker, settings.topic) == {codec}
    records.assert_each_published_once_in_order(settings)
