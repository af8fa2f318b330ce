"""Preparation that makes later starts fast, once per machine: the jars, and Java's cache of the broker's classes.

A broker starts without the second, only more slowly.
"""

import logging
import os
import subprocess
import tempfile
from pathlib import Path

from sla_pipeline.embedded.errors import ServiceError
from sla_pipeline.embedded.jars import fetch_jars, locked_cache
from sla_pipeline.embedded.java import java_command, java_environment, startup_cache
from sla_pipeline.embedded.kafka import embedded_kafka
from sla_pipeline.errors import ConfigurationError

__all__ = ["warm_up"]

# Bounds the stop of the recorded broker: Java writes its record when it ends, in 1 s, and longer on a busy machine.
_RECORDING_TIMEOUT_SECONDS = 120.0

log = logging.getLogger(__name__)


def warm_up() -> None:
    """Fetch the jars, and start a broker once to record the classes that Java loads.

    The recording takes half a minute and halves the CPU time of every later start. It is skipped when there is one
    already, and when the jars are complete but their folder cannot be written. Raises ``ServiceError`` when a jar
    cannot be fetched or the broker does not start, and ``ConfigurationError`` when the jars' folder cannot be used.
    """
    newest = max(jar.stat().st_mtime for jar in fetch_jars())
    cache = startup_cache()
    if _is_current(cache, newest):
        return
    try:
        with locked_cache(cache.parent, f"{cache.stem}.lock"):
            if _is_current(cache, newest):
                return
            cache.unlink(missing_ok=True)
            log.info("preparing Java's startup cache for Apache Kafka, once, in %s", cache.parent)
            with tempfile.TemporaryDirectory(dir=cache.parent) as folder:
                _record(Path(folder), cache)
    except ConfigurationError as error:
        log.info("Kafka starts more slowly, without Java's startup cache: %s", error)


def _is_current(cache: Path, newest: float) -> bool:
    # Java refuses a cache that is older than its jars.
    return cache.exists() and cache.stat().st_mtime >= newest


def _record(folder: Path, cache: Path) -> None:
    recorded, part = folder / "recorded.aotconf", folder / "cache.aot"
    with embedded_kafka(folder, java_options=["-XX:AOTMode=record", f"-XX:AOTConfiguration={recorded}"]) as broker:
        broker.service.stop(timeout_seconds=_RECORDING_TIMEOUT_SECONDS)
    options = ["-XX:AOTMode=create", f"-XX:AOTConfiguration={recorded}", f"-XX:AOTCache={part}"]
    made = subprocess.run(
        [*java_command(folder, options), "kafka.Kafka"],
        capture_output=True,
        text=True,
        check=False,
        env=java_environment(),
    )
    if made.returncode or not part.exists():
        raise ServiceError(f"Java's startup cache cannot be made: {(made.stderr or made.stdout).strip()[-2000:]}")
    os.utime(part)
    part.rename(cache)
