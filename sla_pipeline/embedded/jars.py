"""The broker's jars: fetched once per user, checked by SHA-256 each time they are used.

jgo serves as a downloader, by its Maven layer alone: its environments accept incomplete sets of jars and check no
SHA-256. The expected jars and hashes are those of ``kafka.lock.toml``.
"""

import contextlib
import functools
import hashlib
import logging
import os
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import filelock

from sla_pipeline.embedded.errors import ServiceError
from sla_pipeline.embedded.folders import FULL, cause, is_below
from sla_pipeline.environment import variable
from sla_pipeline.errors import ConfigurationError

__all__ = [
    "CACHE_VARIABLE",
    "KAFKA_VERSION",
    "REPOSITORY_VARIABLE",
    "Jar",
    "cache_folder",
    "fetch_jars",
    "locked_cache",
    "locked_jars",
]

KAFKA_VERSION = "4.3.1"
CACHE_VARIABLE = "SLA_EMBEDDED_CACHE"
# URL of a Maven repository in place of Maven Central, for example a company's mirror.
REPOSITORY_VARIABLE = "SLA_EMBEDDED_MAVEN_REPOSITORY"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Jar:
    """A locked jar, by its Maven coordinates. ``size`` is in bytes."""

    group: str
    artifact: str
    version: str
    sha256: str
    size: int

    @property
    def file_name(self) -> str:
        """File name in the cache."""
        return f"{self.artifact}-{self.version}.jar"

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"


@functools.cache
def locked_jars() -> tuple[Jar, ...]:
    """Return the jars of ``kafka.lock.toml``: the broker and its logging back end."""
    text = resources.files(__package__).joinpath("kafka.lock.toml").read_text()
    return tuple(Jar(**entry) for entry in tomllib.loads(text)["jar"])


def cache_folder() -> Path:
    """Return the folder of the jars: below ``$SLA_EMBEDDED_CACHE``, or else below the user's cache folder.

    All checkouts share it. Raises ``ConfigurationError`` when there is neither a variable nor a home.
    """
    if chosen := variable(CACHE_VARIABLE):
        base = Path(chosen).absolute()
    else:
        user_cache = Path(variable("XDG_CACHE_HOME"))
        # The specification of XDG_CACHE_HOME requires that a relative path is ignored.
        base = (user_cache if user_cache.is_absolute() else _home() / ".cache") / "sla-pipeline"
    return base / f"kafka-{KAFKA_VERSION}"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        raise ConfigurationError(
            f"there is no folder for Kafka's jars: HOME is not set, and user {os.geteuid()} has no home; name a "
            f"folder in {CACHE_VARIABLE}"
        ) from None


@contextlib.contextmanager
def locked_cache(folder: Path, lock: str) -> Iterator[None]:
    """Create ``folder``, the cache, and hold its lock file ``lock``. Writers need it.

    Readers need no lock: every file arrives in the cache complete, by a rename. Raises ``ConfigurationError`` when the
    folder cannot be written, and ``ServiceError`` when the disk is full.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder / lock):
            yield
    except OSError as error:
        if (
            error.errno not in FULL
            and not is_below(folder, error.filename)
            and error.filename not in map(str, folder.parents)
        ):
            raise
        message = f"the folder of Kafka's jars, {folder}, cannot be used: {cause(error, folder)}"
        if error.errno in FULL:
            raise ServiceError(f"{message}; free some, or name another folder in {CACHE_VARIABLE}") from error
        raise ConfigurationError(f"{message}; name another folder in {CACHE_VARIABLE}") from error


def fetch_jars(cache: Path | None = None, jars: tuple[Jar, ...] | None = None) -> list[Path]:
    """Return the paths of all jars, in the lock's order; fetch those that are missing from ``cache`` or altered.

    Processes that fetch at the same time wait for each other; a complete cache is only read. Raises ``ServiceError``,
    naming the jar, when it cannot be fetched or its SHA-256 is not the locked one; such a file is not kept. When a jar
    has to be fetched, raises what ``locked_cache`` raises.
    """
    folder = cache or cache_folder()
    wanted = locked_jars() if jars is None else jars
    if _missing(folder, wanted):
        with locked_cache(folder, ".lock"):
            # Another process may have fetched them while this one waited.
            missing = _missing(folder, wanted)
            if missing:
                megabytes = sum(jar.size for jar in missing) / 1e6
                log.info(
                    "fetching %d jars of Apache Kafka %s, %.0f MB, into %s",
                    len(missing),
                    KAFKA_VERSION,
                    megabytes,
                    folder,
                )
            for jar in missing:
                _fetch(jar, folder)
    return [folder / jar.file_name for jar in wanted]


def _missing(folder: Path, wanted: tuple[Jar, ...]) -> list[Jar]:
    return [jar for jar in wanted if not _is_as_locked(folder / jar.file_name, jar)]


def _is_as_locked(path: Path, jar: Jar) -> bool:
    try:
        return _sha256(path) == jar.sha256
    except OSError:
        # The file is missing or not readable. When it cannot be replaced either, the fetch reports that.
        return False


def _fetch(jar: Jar, folder: Path) -> None:
    from jgo.maven import MavenContext  # noqa: PLC0415 - it is half of this package's import time, and needed once per machine

    mirror = variable(REPOSITORY_VARIABLE)
    with tempfile.TemporaryDirectory(dir=folder) as part:
        # A local repository of its own: files in ~/.m2 are neither trusted nor changed.
        maven = MavenContext(repo_cache=Path(part), remote_repos={"mirror": mirror} if mirror else None)
        try:
            fetched = Path(maven.project(jar.group, jar.artifact).at_version(jar.version).artifact().resolve())
        except Exception as error:  # jgo passes on every error of its HTTP client
            if isinstance(error, OSError) and error.errno in FULL:
                raise
            raise ServiceError(
                f"{jar} cannot be fetched ({type(error).__name__}); the first run needs the network, later ones do not"
            ) from error
        if (found := _sha256(fetched)) != jar.sha256:
            raise ServiceError(
                f"{jar} has SHA-256 {found}, but kafka.lock.toml requires {jar.sha256}: the file is not used"
            )
        fetched.replace(folder / jar.file_name)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
