"""The broker's jars: fetched once per user, checked by SHA-256 each time they are used.

What belongs here: the cache, the download, the check against ``kafka.lock.toml``. What does not: running the broker
(``kafka.py``). Of jgo only the Maven layer is used, as a downloader: its environments accept incomplete sets of jars
and check no SHA-256.
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

from sla_pipeline.embedded.folders import FULL, cause, is_below
from sla_pipeline.embedded.supervision import ServiceError
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
# URL of a Maven repository to use instead of Maven Central: a company's mirror
REPOSITORY_VARIABLE = "SLA_EMBEDDED_MAVEN_REPOSITORY"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Jar:
    """One locked jar, by its Maven coordinates. ``size`` is in bytes."""

    group: str
    artifact: str
    version: str
    sha256: str
    size: int

    @property
    def file_name(self) -> str:
        """Its name in the cache."""
        return f"{self.artifact}-{self.version}.jar"

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"


@functools.cache
def locked_jars() -> tuple[Jar, ...]:
    """The jars of ``kafka.lock.toml``: the broker and its logging back end."""
    text = resources.files(__package__).joinpath("kafka.lock.toml").read_text()
    return tuple(Jar(**entry) for entry in tomllib.loads(text)["jar"])


def cache_folder() -> Path:
    """Where the jars are kept: below ``$SLA_EMBEDDED_CACHE``, or else below the user's cache folder, shared by all checkouts.

    Raises ``ConfigurationError`` when there is neither a variable nor a home.
    """
    if chosen := variable(CACHE_VARIABLE):
        base = Path(chosen).absolute()
    else:
        user_cache = Path(variable("XDG_CACHE_HOME"))
        # a relative path in XDG_CACHE_HOME is to be ignored, says its specification
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
    """Make ``folder``, the cache, and hold its lock file ``lock``: for those who write there.

    What is complete in the cache is read without a lock: everything arrives there whole, by a rename. Raises
    ``ConfigurationError``, or ``ServiceError`` for a full disk, when the folder cannot be written.
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
    """Paths of all jars, in the lock's order; those that are missing from ``cache`` or altered are fetched first, one after the other.

    Processes that fetch at the same time wait for each other; a complete cache is only read. Raises ``ServiceError``
    naming the jar when it cannot be fetched, or when what was fetched has another SHA-256 than the lock; such a file is
    not kept. Raises what ``locked_cache`` raises when something is to be fetched and the cache cannot be written.
    """
    folder = cache or cache_folder()
    wanted = locked_jars() if jars is None else jars
    if _missing(folder, wanted):
        with locked_cache(folder, ".lock"):
            # another process may have fetched them meanwhile
            missing = _missing(folder, wanted)
            if missing:
                megabytes = sum(jar.size for jar in missing) / 1e6
                _logger.info(
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
    return [jar for jar in wanted if not _is_whole(folder / jar.file_name, jar)]


def _is_whole(path: Path, jar: Jar) -> bool:
    try:
        return _sha256(path) == jar.sha256
    except OSError:
        # not there, or not readable; what cannot be replaced either is reported by who writes
        return False


def _fetch(jar: Jar, folder: Path) -> None:
    from jgo.maven import MavenContext  # noqa: PLC0415 - half of this package's import time, and needed once per machine

    mirror = variable(REPOSITORY_VARIABLE)
    with tempfile.TemporaryDirectory(dir=folder) as part:
        # a local repository of its own: what lies in ~/.m2 is neither trusted nor touched
        maven = MavenContext(repo_cache=Path(part), remote_repos={"mirror": mirror} if mirror else None)
        try:
            fetched = Path(maven.project(jar.group, jar.artifact).at_version(jar.version).artifact().resolve())
        except Exception as error:  # jgo lets every error of its HTTP client through
            if isinstance(error, OSError) and error.errno in FULL:
                raise
            raise ServiceError(
                f"{jar} cannot be fetched ({type(error).__name__}); the first run needs the network, later ones do not"
            ) from error
        if (found := _sha256(fetched)) != jar.sha256:
            raise ServiceError(f"{jar} has SHA-256 {found}, kafka.lock.toml says {jar.sha256}: not used")
        fetched.replace(folder / jar.file_name)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
