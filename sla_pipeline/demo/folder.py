"""The demo's folder: claiming it, and one line with the remedy when it cannot be used."""

import contextlib
import errno
import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import psycopg
import sqlalchemy.exc

from sla_pipeline.embedded import ServiceError, UnusableState
from sla_pipeline.embedded.supervision import exclusive
from sla_pipeline.errors import DatabaseError, DatabaseUnavailable, FailClosed, InputError, KafkaError, KafkaUnavailable
from sla_pipeline.kafka.recovery import State, diagnose
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.postgres.outbox import PostgresOutbox
from sla_pipeline.postgres.session import PostgresSettings

__all__ = ["check_agreement", "claimed_folder", "usable_or_remedy"]

_LOCK = "demo.lock"
# a disk that is full, over its quota or read-only is no fault of the data: removing the folder may not even be possible
_DISK = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up", errno.EROFS: "the disk is read-only"}


@contextlib.contextmanager
def claimed_folder(state: Path) -> Iterator[None]:
    """Make ``state`` and hold it for this process.

    Raises ``InputError`` when it cannot be a folder of ours, ``ServiceError`` when another demo holds it.
    """
    with contextlib.ExitStack() as held:
        try:
            state.mkdir(parents=True, exist_ok=True)
            held.enter_context(exclusive(state / _LOCK, f"the demo's folder {state}"))
        except OSError as error:
            raise InputError(f"the demo cannot use the folder {state}: {_cause(error, state)}; {_choose(error, state)}") from error
        yield


@contextlib.contextmanager
def usable_or_remedy(state: Path) -> Iterator[None]:
    """Turn what goes wrong on the data in ``state`` into a ``ServiceError`` of one line: folder, cause, remedy, what is lost."""
    try:
        yield
    except UnusableState as error:
        raise _unusable(state, error.cause) from error
    except (DatabaseUnavailable, KafkaUnavailable) as error:
        # perhaps a slow machine: nothing is to be thrown away at the first try
        raise ServiceError(f"the demo did not start: {_one_line(error)}; start again, and if that fails too, {_remove(state)}") from error
    except (DatabaseError, KafkaError, FailClosed, psycopg.Error) as error:
        raise _unusable(state, _one_line(error)) from error
    except (dg.DagsterError, sqlalchemy.exc.SQLAlchemyError) as error:
        raise _unusable(state, f"Dagster's storage: {_one_line(error)}") from error
    except OSError as error:
        if error.errno in _DISK:
            raise ServiceError(f"the demo cannot use its folder {state}: {_cause(error, state)}; {_choose(error, state)}") from error
        if not _is_below(state, error.filename):
            raise
        raise _unusable(state, _cause(error, state)) from error


def check_agreement(state: Path, owner_url: str, kafka: KafkaSettings) -> None:
    """Raise ``ServiceError`` when Postgres and Kafka in ``state`` are not of one history: one was removed, or restored, alone."""
    with PostgresOutbox(PostgresSettings(owner_url)) as outbox:
        found = diagnose(kafka, outbox)
    if found.state is not State.AGREED:
        raise _unusable(state, f"its postgres and its kafka do not belong together ({found.state.value})")


def _unusable(state: Path, cause: str) -> ServiceError:
    return ServiceError(f"the demo cannot use its folder {state}: {cause}; {_remove(state)}")


def _remove(state: Path) -> str:
    return f"remove {state} and start again (the demo's tickets, events and Dagster runs are lost)"


def _choose(error: OSError, state: Path) -> str:
    if error.errno in _DISK:
        return "free or remount it, or name another folder with --state"
    return f"remove {state}, or name another folder with --state"


def _cause(error: OSError, state: Path) -> str:
    reason = _DISK.get(error.errno or 0) or error.strerror or str(error)
    if not isinstance(error.filename, (str, bytes)):
        return reason
    place = Path(os.fsdecode(error.filename))
    where = "" if place == state else f"{place}: "
    return f"{where}{reason}{_owned_by_another(place) if isinstance(error, PermissionError) else ''}"


def _owned_by_another(place: Path) -> str:
    """A hint at the usual reason: an earlier demo ran as root."""
    for path in (place, *place.parents):
        with contextlib.suppress(OSError):
            owner = path.stat().st_uid
            if owner == os.geteuid():
                return ""
            with contextlib.suppress(KeyError):
                return f" ({path} belongs to {pwd.getpwuid(owner).pw_name})"
            return f" ({path} belongs to user {owner})"
    return ""


def _is_below(state: Path, filename: object) -> bool:
    return isinstance(filename, (str, bytes)) and Path(os.fsdecode(filename)).is_relative_to(state)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
