"""Positions of both sides, and the sequence below which events may have expired."""

import sys

import pytest

from sla_pipeline.audit.findings import Check, Positions, Tally
from sla_pipeline.audit.positions import check_positions, expired_below


@pytest.mark.parametrize(
    ("low_watermarks", "first_seqs", "floor"),
    [
        ({0: 0, 1: 0}, {0: 1, 1: 2}, 0),
        ({0: 0, 1: 0}, {}, 0),
        ({0: 1, 1: 0}, {0: 9, 1: 2}, 9),
        ({0: 5, 1: 7}, {0: 9, 1: 12}, 12),
        # a partition that has lost all it had may have held anything
        ({0: 5, 1: 0}, {1: 2}, sys.maxsize),
    ],
)
def test_what_may_have_expired_lies_below_the_first_sequence_kept(
    low_watermarks: dict[int, int], first_seqs: dict[int, int], floor: int
) -> None:
    assert expired_below(low_watermarks, first_seqs) == floor


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        (Positions(5, 5, 5, 5, 5), {}),
        (Positions(0, 0, 0, None, 0), {}),
        # they are read one after the other while the job continues, so each may be ahead of the one before
        (Positions(3, 5, 8, 6, 9), {Check.POSTGRES_BEHIND_PROGRESS: 2}),
        (Positions(5, 3, 8, 3, 3), {Check.PROGRESS_BEHIND_POSTGRES: 2}),
        (Positions(5, 9, 8, 5, 9), {Check.POSTGRES_BEHIND_PROGRESS: 4, Check.PROGRESS_AHEAD_OF_SEQUENCE: 1}),
        (Positions(5, 5, 8, 7, 5), {Check.EVENT_AHEAD_OF_PROGRESS: 2}),
        (Positions(5, None, 5, 5, None), {Check.PROGRESS_UNREADABLE: 1}),
        (Positions(5, 5, 5, 5, None), {Check.PROGRESS_UNREADABLE: 1}),
    ],
)
def test_positions_contradict_each_other_or_do_not(positions: Positions, expected: dict[Check, int]) -> None:
    tally = Tally()
    check_positions(positions, tally)
    assert {finding.check: finding.count for finding in tally.findings({}) if finding.count} == expected


def test_what_either_side_claims_to_be_published_must_be_there() -> None:
    assert Positions(3, 5, 8, 6, 9).claimed_published == 5
    assert Positions(5, None, 8, 6, None).claimed_published == 5
