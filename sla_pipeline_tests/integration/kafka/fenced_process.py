"""Process whose producers are fenced while their records are in flight, and dropped then.

It prints the name of the error that each producer's delivery ended with. It is a process of its own because the fault
under test ends the process.
"""

import json
import subprocess
import sys
from dataclasses import asdict

from confluent_kafka import KafkaException

from sla_pipeline.kafka.clients import TransactionalProducer
from sla_pipeline.kafka.settings import KafkaSettings

_TIMEOUT_SECONDS = 20.0
# One batch per partition, and several, whose replies arrive one after another.
_RECORD_COUNTS = (1, 30, 120, 400)


def run_fenced_producers(settings: KafkaSettings, *, rounds: int) -> "subprocess.CompletedProcess[str]":
    """Run ``rounds`` producers, one after another, in one process."""
    command = [sys.executable, "-m", __name__, json.dumps({"kafka": asdict(settings), "rounds": rounds})]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def _fenced_delivery(settings: KafkaSettings, record_count: int) -> str:
    fenced, successor = TransactionalProducer(settings), TransactionalProducer(settings)
    for producer in (fenced, successor):
        producer.connect(_TIMEOUT_SECONDS)
    fenced.fence(_TIMEOUT_SECONDS)
    fenced.begin()
    for number in range(record_count):
        fenced.produce(settings.topic, "x" * 450, str(number).encode())
    successor.fence(_TIMEOUT_SECONDS)
    try:
        fenced.deliver(_TIMEOUT_SECONDS)
        outcome = "delivered"
    except KafkaException as error:
        outcome = str(error.args[0].name())
    fenced.drop()
    successor.drop()
    return outcome


def main(argument: str) -> None:
    request = json.loads(argument)
    # The records stay in the client until `deliver`: none is sent before the successor's fence.
    settings = KafkaSettings(**{**request["kafka"], "client_config": {"linger.ms": "5000"}})
    for number in range(request["rounds"]):
        sys.stdout.write(f"{_fenced_delivery(settings, _RECORD_COUNTS[number % len(_RECORD_COUNTS)])}\n")


if __name__ == "__main__":
    main(sys.argv[1])
