"""Faults inside a step become errors of the cycle, which goes on to publish, to close and to report them."""

import contextlib
import logging
import traceback
from collections.abc import Iterator

import psycopg

from sla_pipeline.cycle import ErrorList
from sla_pipeline.errors import RightMissing, SlaPipelineError, UnexpectedFault
from sla_pipeline.postgres.database import Database
from sla_pipeline.postgres.faults import translate

__all__ = ["bookkeeping", "counted", "fault_of"]

log = logging.getLogger(__name__)


def fault_of(error: Exception, database: Database, *, doing: str, run_id: str) -> SlaPipelineError:
    """One of our errors for ``error``, without text that may repeat a ticket's data."""
    if isinstance(error, SlaPipelineError):
        return error
    if isinstance(error, psycopg.Error):
        return translate(error, database.settings)
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("unexpected fault", extra={"jobRunId": run_id, "fault": type(error).__name__, "traceback": frames})
    return UnexpectedFault(
        f'unexpected {type(error).__name__} while {doing}; its traceback is in the log, line "unexpected fault"'
    )


@contextlib.contextmanager
def counted(database: Database, errors: ErrorList, *, what: str, run_id: str) -> Iterator[list[SlaPipelineError]]:
    """Add any fault of the block to ``errors`` instead of raising it, as "``what`` failed: ..."; the list that is
    yielded then holds it.
    """
    faults: list[SlaPipelineError] = []
    try:
        yield faults
    except Exception as error:  # noqa: BLE001 - whatever fails in a step, the cycle goes on to publish, to close and to report it
        faults.append(fault_of(error, database, doing=what, run_id=run_id))
        log.error("step failed", extra={"jobRunId": run_id, "step": what, "error": str(faults[0])})  # noqa: TRY400  the message is complete
        errors.add(f"{what} failed: {faults[0]}")


@contextlib.contextmanager
def bookkeeping(database: Database, errors: ErrorList, *, table: str, rights: str, run_id: str) -> Iterator[None]:
    """Run what only keeps books: its failure is an error of the cycle, which marks and publishes all the same."""
    noted = ErrorList()
    with counted(database, noted, what=f"bookkeeping in {table}", run_id=run_id) as faults:
        yield
    if faults:
        (fault,) = noted.kept()
        right = f"; `grant {rights} on {table} to sla_worker`" if isinstance(faults[0], RightMissing) else ""
        # a thousand rows that cannot be noted are one error
        if fault + right not in errors.kept():
            errors.add(fault + right)
