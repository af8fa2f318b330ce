"""Faults inside a step, turned into errors of the cycle, which goes on to publish, to close and to report them."""

import contextlib
import logging
import traceback
from collections.abc import Iterator

from sla_pipeline.cycle import Claim, ErrorList
from sla_pipeline.errors import SlaPipelineError, UnexpectedFault
from sla_pipeline.postgres.database import Database

__all__ = ["bookkeeping", "counted", "fault_of"]

log = logging.getLogger(__name__)


def fault_of(error: Exception, database: Database, *, doing: str, run_id: str) -> SlaPipelineError:
    """Return one of our errors for ``error``, without text that may repeat a ticket's data."""
    ours = error if isinstance(error, SlaPipelineError) else database.translated(error)
    if ours is not None:
        return ours
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("unexpected fault", extra={"jobRunId": run_id, "fault": type(error).__name__, "traceback": frames})
    return UnexpectedFault(
        f'unexpected {type(error).__name__} while {doing}; its traceback is in the log, line "unexpected fault"'
    )


@contextlib.contextmanager
def counted(database: Database, errors: ErrorList, *, step: str, run_id: str) -> Iterator[list[SlaPipelineError]]:
    """Add a fault of the block to ``errors``, as "``step`` failed: ...", instead of raising it.

    Yields a list that holds the fault afterwards.
    """
    faults: list[SlaPipelineError] = []
    try:
        yield faults
    except Exception as error:  # noqa: BLE001 - whatever fails in a step, the cycle goes on to publish, to close and to report it
        faults.append(fault_of(error, database, doing=step, run_id=run_id))
        log.error("step failed", extra={"jobRunId": run_id, "step": step, "error": str(faults[0])})  # noqa: TRY400  the message is complete
        errors.add(f"{step} failed: {faults[0]}", faults[0])


@contextlib.contextmanager
def bookkeeping(database: Database, claim: Claim, *, table: str) -> Iterator[None]:
    """Run a write to the journal or to the table of rows set aside: a failure is counted, and stops no mark."""
    failures = ErrorList()
    with counted(database, failures, step=f"bookkeeping in {table}", run_id=claim.run_id):
        yield
    for failure, fault in zip(failures.kept(), failures.faults, strict=True):
        # a thousand rows that cannot be recorded are one error
        if failure not in claim.totals.errors:
            claim.totals.error_list.add(failure, fault)
