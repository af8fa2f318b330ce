"""What makes later starts fast, done once per machine: the jars, and Java's cache of the broker's classes.

What belongs here: preparing the cache folder ahead of time. What does not: anything that a broker cannot start without.
"""

import logging
import os
import subprocess
import tempfile
from pathlib import Path

from sla_pipeline.embedded.jars import fetch_jars, locked_cache
from sla_pipeline.embedded.java import java_command, java_environment, startup_cache
from sla_pipeline.embedded.kafka import embedded_kafka
from sla_pipeline.embedded.supervision import ServiceError
from sla_pipeline.errors import ConfigurationError

__all__ = ["warm_up"]

# Java writes down what it saw when it ends: 1 s, and more on a busy machine
_RECORDING_TIMEOUT_SECONDS = 120.0

_logger = logging.getLogger(__name__)


def warm_up() -> None:
    """Fetches the jars, and starts a broker once to record what Java loads: half a minute, after which a start costs half the CPU time.

    Does nothing when it was done before, and does without where the jars are there and their folder cannot be written.
    Raises ``ServiceError`` when a jar cannot be had or the broker does not start; ``ConfigurationError`` when the jars'
    folder cannot be used.
    """
    newest = max(jar.stat().st_mtime for jar in fetch_jars())
    cache = startup_cache()
    if _is_made(cache, newest):
        return
    try:
        with locked_cache(cache.parent, f"{cache.stem}.lock"):
            if _is_made(cache, newest):
                return
            cache.unlink(missing_ok=True)
            _logger.info("preparing Java's startup cache for Apache Kafka, once, in %s", cache.parent)
            with tempfile.TemporaryDirectory(dir=cache.parent) as folder:
                _record(Path(folder), cache)
    except ConfigurationError as error:
        _logger.info("Kafka starts more slowly, without Java's startup cache: %s", error)


def _is_made(cache: Path, newest: float) -> bool:
    # Java refuses a cache whose jars were written later
    return cache.exists() and cache.stat().st_mtime >= newest


def _record(folder: Path, cache: Path) -> None:
    seen, part = folder / "seen.aotconf", folder / "cache.aot"
    with embedded_kafka(folder, java_options=["-XX:AOTMode=record", f"-XX:AOTConfiguration={seen}"]) as broker:
        broker.service.stop(timeout_seconds=_RECORDING_TIMEOUT_SECONDS)
    options = ["-XX:AOTMode=create", f"-XX:AOTConfiguration={seen}", f"-XX:AOTCache={part}"]
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
