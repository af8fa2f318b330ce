"""The demo's folder: its lock, and one-line errors with a remedy when it cannot be used."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import psycopg
import sqlalchemy.exc

from sla_pipeline.embedded import ServiceError, UnusableState
from sla_pipeline.embedded.folders import DISK, cause, is_below
from sla_pipeline.embedded.locks import exclusive
from sla_pipeline.errors import (
    FailClosed,
    InputError,
    KafkaSetupError,
    KafkaUnavailable,
    PostgresSetupError,
    PostgresUnavailable,
    SlaPipelineError,
)
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.postgres.faults import first_line
from sla_pipeline.postgres.outbox import PostgresOutbox
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline.recovery.diagnosis import State
from sla_pipeline.recovery.repair import diagnose

__all__ = ["check_consistency", "folder_errors_explained", "locked_folder"]

_LOCK = "demo.lock"
# texts of the system, of PostgreSQL and of its driver, in an error or at the end of a server's log
_DISK_FULL_SIGNS = (os.strerror(errno.ENOSPC), "Check free disk space", "DiskFull")
_CHOOSE = "free or remount it, or name another folder with --state"


@contextlib.contextmanager
def locked_folder(state: Path) -> Iterator[None]:
    """Create the folder ``state`` and lock it for this process.

    Raises ``InputError`` when it cannot be used, ``ServiceError`` when another demo holds it.
    """
    with contextlib.ExitStack() as stack:
        try:
            state.mkdir(parents=True, exist_ok=True)
            stack.enter_context(exclusive(state / _LOCK, f"the demo's folder {state}"))
        except OSError as error:
            if error.errno in DISK:
                remedy = _CHOOSE
            elif os.path.lexists(state):
                remedy = f"remove {state}, or name another folder with --state"
            else:
                remedy = "name another one with --state"
            raise InputError(f"the demo cannot use the folder {state}: {cause(error, state)}; {remedy}") from error
        yield


@contextlib.contextmanager
def folder_errors_explained(state: Path) -> Iterator[None]:
    """Convert an error of the data in ``state`` into a one-line ``ServiceError``: folder, cause, remedy, loss."""
    try:
        yield
    except (SlaPipelineError, psycopg.Error, dg.DagsterError, sqlalchemy.exc.SQLAlchemyError) as error:
        explained = _explained(state, error)
        if explained is None:
            raise
        raise explained from error
    except OSError as error:
        if error.errno in DISK:
            raise ServiceError(f"the demo cannot use its folder {state}: {cause(error, state)}; {_CHOOSE}") from error
        if not is_below(state, error.filename):
            raise
        raise _unusable(state, cause(error, state)) from error


def _explained(state: Path, error: Exception) -> ServiceError | None:
    """Return the error with a remedy; None when ``error`` already names one."""
    if any(sign in str(error) for sign in _DISK_FULL_SIGNS):
        return ServiceError(f"the demo cannot use its folder {state}: {DISK[errno.ENOSPC]}; {_CHOOSE}")
    match error:
        case UnusableState():
            return _unusable(state, error.cause)
        case PostgresUnavailable() | KafkaUnavailable():
            # perhaps a slow machine: the first remedy must not lose data
            return ServiceError(
                f"the demo did not start: {first_line(error)}; start again, and if that fails too, {_remove(state)}"
            )
        case PostgresSetupError() | KafkaSetupError() | FailClosed() | psycopg.Error():
            return _unusable(state, first_line(error))
        case dg.DagsterError() | sqlalchemy.exc.SQLAlchemyError():
            return _unusable(state, f"Dagster's storage: {first_line(error)}")
        case _:
            return None


def check_consistency(state: Path, owner_url: str, kafka: KafkaSettings) -> None:
    """Raise ``ServiceError`` when Postgres and Kafka in ``state`` differ, as when one of them was removed."""
    with PostgresOutbox(PostgresSettings(owner_url)) as outbox:
        found = diagnose(kafka, outbox)
    if found.state is not State.AGREED:
        raise _unusable(state, f"its postgres and its kafka do not belong together ({found.state.value})")


def _unusable(state: Path, cause: str) -> ServiceError:
    return ServiceError(f"the demo cannot use its folder {state}: {cause}; {_remove(state)}")


def _remove(state: Path) -> str:
    return f"remove {state} and start again (the demo's tickets, events and Dagster runs are lost)"
