"""``python -m sla_pipeline.embedded.lock_jars``: write ``kafka.lock.toml`` for another release of Kafka.

For maintainers. The jars that a broker needs are found by resolving Maven's dependencies; no URL goes into the lock.
"""

import hashlib
from pathlib import Path

import jgo

from sla_pipeline.embedded.errors import ServiceError
from sla_pipeline.embedded.jars import KAFKA_VERSION, Jar

__all__ = ["lock_text"]

# The broker, and the back end of its logging in the release of log4j that the broker itself depends on.
_ROOTS = (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4")


def lock_text() -> str:
    """Return the lock's text, sorted by group and artifact.

    Raises ``ServiceError`` when two releases of one jar are required.
    """
    jars: dict[tuple[str, str], Jar] = {}
    for root in _ROOTS:
        for artifact in jgo.resolve(root):
            path = Path(artifact.resolve())
            sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
            jar = Jar(artifact.groupId, artifact.artifactId, artifact.version, sha256, path.stat().st_size)
            if (known := jars.setdefault((jar.group, jar.artifact), jar)) != jar:
                raise ServiceError(f"{known} and {jar} are both required; choose roots that agree")
    head = (
        "# jars of Apache Kafka (org.apache.kafka:kafka_2.13) and its logging back end; written by "
        "sla_pipeline.embedded.lock_jars\n"
    )
    return head + "\n".join(_table(jars[key]) for key in sorted(jars))


def _table(jar: Jar) -> str:
    fields = (
        f'group = "{jar.group}"\nartifact = "{jar.artifact}"\nversion = "{jar.version}"\nsha256 = '
        f'"{jar.sha256}"\nsize = {jar.size}\n'
    )
    return f"[[jar]]\n{fields}"


if __name__ == "__main__":
    Path(__file__).with_name("kafka.lock.toml").write_text(lock_text())
