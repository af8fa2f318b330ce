"""Write records that no client library writes, by requests of Kafka's protocol.

They belong to a transaction that is unknown to the coordinator (the broker must not verify transactions:
``UNVERIFIED``), or have header names that are not UTF-8.
"""

import socket
import struct
import time
from collections.abc import Sequence

from sla_pipeline.event import event_headers, event_key
from sla_pipeline.kafka.progress import PROGRESS_KEY, Progress
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.outbox import BreachRecord

__all__ = ["UNVERIFIED", "leave_hanging", "write_with_headers"]

UNVERIFIED = {"transaction.partition.verification.enable": "false"}
"""Property of a broker that takes transactional records without asking the coordinator."""

_PRODUCE, _INIT_PRODUCER_ID = 0, 22
_IS_TRANSACTIONAL = 0x10
_CONCURRENT_TRANSACTIONS = 51


def leave_hanging(
    settings: KafkaSettings, events: dict[int, Sequence[BreachRecord]], progress: Progress | None
) -> None:
    """Write ``events`` by partition and a progress record, as the publisher would, in a transaction without an end."""
    host, _, port = settings.bootstrap_servers.partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        transactional_id = _text(settings.transactional_id)
        producer_id, epoch = _init_producer_id(connection, transactional_id)
        places = [
            (settings.topic, partition, [_event(index, record) for index, record in enumerate(records)])
            for partition, records in events.items()
        ]
        if progress is not None:
            places.append((settings.progress_topic, 0, [_record(0, PROGRESS_KEY, progress.to_json(), ())]))
        for topic, partition, records in places:
            _produce(
                connection,
                transactional_id,
                topic,
                partition,
                _batch(producer_id, epoch, records, attributes=_IS_TRANSACTIONAL),
            )


def write_with_headers(settings: KafkaSettings, partition: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Write one plain record to the event topic, with headers whose names may be any bytes."""
    host, _, port = settings.bootstrap_servers.partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        batch = _batch(-1, -1, [_record(0, b"key", b"value", headers)], attributes=0)
        _produce(connection, struct.pack(">h", -1), settings.topic, partition, batch)


def _produce(connection: socket.socket, transactional_id: bytes, topic: str, partition: int, batch: bytes) -> None:
    body = transactional_id + struct.pack(">hii", -1, 10_000, 1) + _text(topic)
    body += struct.pack(">iii", 1, partition, len(batch)) + batch
    answer = _call(connection, _PRODUCE, 3, body)
    # one topic, its name, one partition, its number
    (error,) = struct.unpack_from(">h", answer, 4 + 2 + len(topic) + 4 + 4)
    assert error == 0, f"Produce to {topic}-{partition}: error {error}"


def _init_producer_id(connection: socket.socket, transactional_id: bytes) -> tuple[int, int]:
    """Request a producer id; retry, as every client does, while markers of the last transaction are being written."""
    end = time.monotonic() + 10
    while True:
        answer = _call(connection, _INIT_PRODUCER_ID, 1, transactional_id + struct.pack(">i", 30_000))
        _, error, producer_id, epoch = struct.unpack(">ihqh", answer)
        if error != _CONCURRENT_TRANSACTIONS:
            assert error == 0, f"InitProducerId: error {error}"
            return producer_id, epoch
        assert time.monotonic() < end, "the markers of the transaction before were not written in 10 s"
        time.sleep(0.02)


def _call(connection: socket.socket, key: int, version: int, body: bytes) -> bytes:
    request = struct.pack(">hhi", key, version, 7) + _text("test") + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", _exactly(connection, 4))
    return _exactly(connection, size)[4:]


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = connection.recv(size - len(received))
        assert part, "the broker closed the connection"
        received += part
    return received


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def _event(index: int, record: BreachRecord) -> bytes:
    headers = event_headers(correlation_id=record.correlation_id, outbox_seq=record.seq)
    return _record(
        index, event_key(record.ticket_id), record.payload.encode(), [(name.encode(), value) for name, value in headers]
    )


def _record(index: int, key: bytes, value: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    body = (
        b"\0"
        + _varint(0)
        + _varint(index)
        + _varint(len(key))
        + key
        + _varint(len(value))
        + value
        + _varint(len(headers))
    )
    for name, content in headers:
        body += _varint(len(name)) + name + _varint(len(content)) + content
    return _varint(len(body)) + body


def _batch(producer_id: int, epoch: int, records: Sequence[bytes], *, attributes: int) -> bytes:
    """Return a batch in format 2, uncompressed: offset, length, leader epoch, magic, checksum, records."""
    sequence = 0 if producer_id >= 0 else -1
    covered = struct.pack(
        ">hiqqqhii", attributes, len(records) - 1, 0, 0, producer_id, epoch, sequence, len(records)
    ) + b"".join(records)
    return struct.pack(">qiibI", 0, 4 + 1 + 4 + len(covered), -1, 2, _crc32c(covered)) + covered


def _varint(value: int) -> bytes:
    """Return a zigzag varint of a number that is not negative."""
    value *= 2
    encoded = b""
    while value > 0x7F:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
