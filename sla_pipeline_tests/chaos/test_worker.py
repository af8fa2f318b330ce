"""Outcome that a worker of the harness reports for a cycle with errors."""

import pytest

from sla_pipeline.cycle import CycleTotals
from sla_pipeline.errors import FailClosed, PostgresSetupError, PostgresUnavailable, SlaPipelineError
from sla_pipeline_tests.chaos.worker import _message

_DOWN = PostgresUnavailable("no connection to database 'x'")
_NO_RIGHT = PostgresSetupError("no right")


@pytest.mark.parametrize(
    ("errors", "outcome"),
    [
        ([], "ok"),
        ([("counting tickets that others hold failed", _DOWN)], "PostgresUnavailable"),
        # an unexpected fault is not hidden by an expected one, before or after it
        ([("marking failed", _NO_RIGHT), ("publishing failed", _DOWN)], "PostgresSetupError"),
        ([("marking failed", _DOWN), ("publishing failed", FailClosed("stopped"))], "FailClosed"),
        ([("the second try failed: LockNotAvailable (55P03)", None)], "LockNotAvailable"),
        ([("the second try failed: DeadlockDetected (40P01)", None), ("publishing failed", _DOWN)], "DeadlockDetected"),
        ([("ticket A-1 set aside: its queue is null", None)], "set aside"),
    ],
)
def test_the_outcome_goes_by_the_classes_of_the_faults(
    errors: list[tuple[str, SlaPipelineError | None]], outcome: str
) -> None:
    totals = CycleTotals()
    for text, fault in errors:
        totals.error_list.add(f"{text}: {fault}" if fault else text, fault)
    assert _message(totals).outcome == outcome
