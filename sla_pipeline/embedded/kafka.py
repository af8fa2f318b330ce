"""An embedded Apache Kafka 4.3.1: one node, broker and controller in one (KRaft), its log in a state folder."""

import base64
import contextlib
import re
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sla_pipeline.embedded.errors import ServiceError, UnusableState
from sla_pipeline.embedded.jars import cache_folder, locked_cache
from sla_pipeline.embedded.java import java_command, java_environment
from sla_pipeline.embedded.locks import exclusive
from sla_pipeline.embedded.ports import free_ports, listens
from sla_pipeline.embedded.supervision import Service
from sla_pipeline.errors import ConfigurationError

__all__ = ["EmbeddedKafka", "embedded_kafka"]

# Line of a stack trace that names an exception.
_EXCEPTION = re.compile(r"(?:Caused by: )?((?:\w+\.)+\w*(?:Exception|Error): .*)")


class EmbeddedKafka:
    """A running broker at ``bootstrap_servers``; it keeps its port after ``kill`` or ``stop`` and ``start``."""

    def __init__(self, service: Service, port: int) -> None:
        self.service = service
        self._port = port

    @property
    def bootstrap_servers(self) -> str:
        """``127.0.0.1:<port>``."""
        return f"127.0.0.1:{self._port}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.bootstrap_servers})"

    def start(self) -> None:
        """Start the broker on its log and wait until it answers.

        Raises ``ServiceError`` with the end of its log when it does not answer.
        """
        self.service.start()
        self.service.wait_until(self._answers)

    def stop(self) -> None:
        """Shut the broker down in order."""
        self.service.stop()

    def kill(self) -> None:
        """Kill the broker with SIGKILL."""
        self.service.kill()

    def pause(self) -> None:
        """Pause the broker with SIGSTOP."""
        self.service.pause()

    def resume(self) -> None:
        """Resume the broker with SIGCONT."""
        self.service.resume()

    def _answers(self) -> bool:
        # The port is tried first: a client that finds it closed waits before its next attempt.
        if not listens(self._port):
            return False
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        try:
            return bool(admin.list_topics(timeout=2).brokers)
        except KafkaException:
            return False


@contextlib.contextmanager
def embedded_kafka(
    state: Path, *, properties: Mapping[str, object] | None = None, java_options: Sequence[str] = ()
) -> Iterator[EmbeddedKafka]:
    """Run a broker on the log kept in ``state``, created at the first start.

    It ends on exit, or when this process dies. ``properties`` override the broker's own, ``java_options`` those of
    Java. A topic is not created by its first use. The path ``state`` may hold spaces, but no comma; ``kafka.log`` is
    written there. Raises ``ServiceError`` when ``state`` is in use, a jar cannot be fetched, or the broker does not
    start, and its subclass ``UnusableState`` when the log in ``state`` is the cause.
    """
    state = state.absolute()
    if "," in str(state):
        raise ServiceError(
            f"Kafka cannot keep its log in {state}: its setting log.dirs is a list, and a comma in a path ends an item"
        )
    home = state / "kafka"
    home.mkdir(parents=True, exist_ok=True)
    with exclusive(state / "kafka.lock", f"Kafka in {state}"):
        java = java_command(home, java_options)
        port, controller_port = free_ports(2)
        config = home / "server.properties"
        config.write_text(
            _as_properties(_broker_properties(home / "data", port, controller_port) | dict(properties or {}))
        )
        kept = _check_kept_log(home / "data", state)
        if not kept:
            _format_log(home / "data")
        service = Service(
            "Kafka", [*java, "kafka.Kafka", config], state / "kafka.log", env=java_environment(), cwd=home
        )
        broker = EmbeddedKafka(service, port)
        try:
            try:
                broker.start()
            except ServiceError as error:
                if kept and (cause := _fault_of_the_log(service)):
                    raise UnusableState(
                        state, f"Kafka does not start on the log in {home / 'data'}: {cause}"
                    ) from error
                raise
            yield broker
        finally:
            broker.stop()


def _check_kept_log(data: Path, state: Path) -> bool:
    """Return whether ``data`` is kept from an earlier start.

    Raises ``UnusableState`` when it is there but is not a formatted log.
    """
    if not data.exists():
        return False
    if not (data / "meta.properties").is_file():
        raise UnusableState(state, f"{data} is not a log of Kafka: it has no file meta.properties")
    return True


def _fault_of_the_log(service: Service) -> str | None:
    """Return the exception that ended the broker; None when it logged none, or one about a port that is taken."""
    found = [match[1] for line in service.log_since_start() if (match := _EXCEPTION.match(line))]
    return found[-1] if found and "BindException" not in found[-1] else None


def _broker_properties(data: Path, port: int, controller_port: int) -> dict[str, object]:
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": data,
        # As in production, a misspelt topic is an error.
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": 0,
        # A killed broker can register again only when its session has expired; the default, 9 s, would be the length of
        # every restart.
        "broker.session.timeout.ms": 3000,
        "broker.heartbeat.interval.ms": 500,
        # One node can hold one replica only, and one partition is created faster than fifty.
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
    }


def _as_properties(values: Mapping[str, object]) -> str:
    """Return the text of a Java properties file: printable ASCII, all other characters as UTF-16 escapes."""
    return "".join(f"{name}={_escaped(str(value))}\n" for name, value in values.items())


def _escaped(text: str) -> str:
    utf_16 = text.replace("\\", "\\\\").encode("utf-16-be")
    units = [int.from_bytes(utf_16[i : i + 2]) for i in range(0, len(utf_16), 2)]
    return "".join(chr(unit) if chr(unit).isascii() and chr(unit).isprintable() else f"\\u{unit:04x}" for unit in units)


def _format_log(data: Path) -> None:
    """Create ``data`` as a formatted, empty log with a cluster id of its own.

    The storage tool takes as long as the broker's own start, so its result is kept beside the jars and copied. Raises
    ``ServiceError`` when the tool fails.
    """
    part = data.with_name("data.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        shutil.copytree(_formatted_log(), part)
    except (ConfigurationError, OSError):
        # The cache has no formatted log and cannot be written, or only another user may read the log.
        shutil.rmtree(part, ignore_errors=True)
        _run_storage_tool(part)
    identity = part / "meta.properties"
    identity.write_text(re.sub("(?m)^cluster.id=.*$", f"cluster.id={_new_cluster_id()}", identity.read_text()))
    # The rename makes the log appear complete or not at all.
    part.rename(data)


def _formatted_log() -> Path:
    """Return the path of the cache's formatted log; create the log at the first call.

    Raises what ``locked_cache`` raises.
    """
    formatted = cache_folder() / "formatted-log"
    if not formatted.exists():
        with locked_cache(formatted.parent, "formatted-log.lock"):
            if not formatted.exists():
                _run_storage_tool(formatted)
    return formatted


def _run_storage_tool(formatted: Path) -> None:
    with tempfile.TemporaryDirectory(dir=formatted.parent) as folder:
        config, part = Path(folder, "server.properties"), Path(folder, "data")
        config.write_text(_as_properties(_broker_properties(part, *free_ports(2))))
        command = [
            *java_command(Path(folder)),
            "kafka.tools.StorageTool",
            "format",
            "--cluster-id",
            _new_cluster_id(),
            "--config",
            str(config),
        ]
        made = subprocess.run(command, capture_output=True, text=True, check=False, env=java_environment())
        if made.returncode:
            raise ServiceError(f"Kafka's log cannot be formatted: {' '.join((made.stderr or made.stdout).split())}")
        part.rename(formatted)


def _new_cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
