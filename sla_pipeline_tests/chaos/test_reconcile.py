"""Comparison of committed versions, breach records and events. Needs no server."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from sla_pipeline.breach import Breach, BreachKind
from sla_pipeline.kafka.events import ReceivedEvent
from sla_pipeline_tests.chaos.committed_versions import CommittedVersions, TicketVersions, Version
from sla_pipeline_tests.chaos.reconcile import BreachRow, Findings, TicketRow, compare

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
DUE = NOW - SECOND
OVERDUE = Version("New", DUE, None, NOW + 3600 * SECOND, None)
FIRST_RESPONSE = Breach(BreachKind.FIRST_RESPONSE, DUE)
REPLIED = replace(OVERDUE, first_response_at=NOW - 2 * SECOND)


def versions_of(*versions: Version) -> TicketVersions:
    created, *later = versions
    ticket = TicketVersions(created)
    ticket.versions += later
    return ticket


def marked(version: Version) -> Version:
    return replace(version, sla_breached=True)


class TestFalseBreach:
    def test_a_mark_on_a_version_that_was_overdue_is_right(self) -> None:
        assert not versions_of(OVERDUE).is_false_breach(FIRST_RESPONSE, NOW)

    def test_a_mark_after_a_committed_reply_is_false(self) -> None:
        assert versions_of(OVERDUE, REPLIED).is_false_breach(FIRST_RESPONSE, NOW)

    def test_a_mark_before_the_reply_is_right_because_the_reply_saw_it(self) -> None:
        assert not versions_of(OVERDUE, marked(REPLIED)).is_false_breach(FIRST_RESPONSE, NOW)

    def test_a_mark_with_the_other_kind_or_another_deadline_is_false(self) -> None:
        assert versions_of(OVERDUE).is_false_breach(Breach(BreachKind.RESOLUTION, DUE), NOW)
        assert versions_of(OVERDUE).is_false_breach(Breach(BreachKind.FIRST_RESPONSE, DUE - SECOND), NOW)

    def test_a_mark_at_the_very_deadline_is_false(self) -> None:
        assert versions_of(OVERDUE).is_false_breach(FIRST_RESPONSE, DUE)
        assert not versions_of(OVERDUE).is_false_breach(FIRST_RESPONSE, DUE + timedelta(microseconds=1))

    def test_a_mark_by_a_deadline_that_was_moved_is_false(self) -> None:
        moved = replace(OVERDUE, first_response_due_at=NOW + SECOND)
        assert versions_of(OVERDUE, moved).is_false_breach(FIRST_RESPONSE, NOW)

    @pytest.mark.parametrize("status", ["Resolved", "Closed", "OnHold"])
    def test_a_mark_on_a_ticket_that_was_not_active_is_false(self, status: str) -> None:
        assert versions_of(OVERDUE, replace(OVERDUE, status=status)).is_false_breach(FIRST_RESPONSE, NOW)


class TestMissed:
    def test_overdue_at_the_cutoff_is_missed(self) -> None:
        assert versions_of(OVERDUE).is_missed(NOW)

    def test_answered_or_not_due_is_not(self) -> None:
        assert not versions_of(OVERDUE, REPLIED).is_missed(NOW)
        assert not versions_of(OVERDUE).is_missed(DUE)

    def test_reopened_with_its_old_deadline_is_missed(self) -> None:
        resolved = Version("Resolved", DUE, DUE, DUE, DUE)
        assert versions_of(resolved, replace(resolved, status="InWork", resolved_at=None)).is_missed(NOW)


class TestComparison:
    TICKET = "0a11ce00-0000-4000-8000-000000000001"
    RECORD = BreachRow(1, TICKET, "FirstResponse", DUE, NOW, "{}")

    def compared(
        self, *, row: Version, records: list[BreachRow], seqs: list[int], versions: tuple[Version, ...] = (OVERDUE,)
    ) -> Findings:
        committed = CommittedVersions()
        committed.create(self.TICKET, versions[0])
        for version in versions[1:]:
            committed.commit(self.TICKET, version)
        events = [
            ReceivedEvent(0, offset, 0, self.TICKET.encode(), {"outbox-seq": str(seq).encode()}, b"{}")
            for offset, seq in enumerate(seqs)
        ]
        return compare([TicketRow(self.TICKET, row)], records, events, committed, NOW)

    def test_mark_record_and_event_agree(self) -> None:
        found = self.compared(row=marked(OVERDUE), records=[self.RECORD], seqs=[1])
        assert (found.breaches, found.events, found.faults) == (1, 1, {})

    def test_a_duplicate(self) -> None:
        assert self.compared(row=marked(OVERDUE), records=[self.RECORD], seqs=[1, 1]).faults == {"duplicates": 1}

    def test_a_loss(self) -> None:
        assert self.compared(row=marked(OVERDUE), records=[self.RECORD], seqs=[]).faults == {"losses": 1}

    def test_a_missed_ticket(self) -> None:
        assert self.compared(row=OVERDUE, records=[], seqs=[]).faults == {"missed": 1}

    def test_a_false_breach(self) -> None:
        found = self.compared(row=marked(REPLIED), records=[self.RECORD], seqs=[1], versions=(OVERDUE, REPLIED))
        assert found.faults == {"false_breaches": 1}

    def test_a_mark_without_a_record(self) -> None:
        assert self.compared(row=marked(OVERDUE), records=[], seqs=[]).faults == {"unrecorded": 1, "missed": 1}

    def test_a_ticket_that_differs_from_the_last_committed_version(self) -> None:
        found = self.compared(row=marked(replace(OVERDUE, status="InWork")), records=[self.RECORD], seqs=[1])
        assert found.faults == {"altered": 1}

    def test_a_flag_that_was_reset(self) -> None:
        found = self.compared(
            row=marked(OVERDUE), records=[self.RECORD], seqs=[1], versions=(OVERDUE, marked(OVERDUE), OVERDUE)
        )
        assert found.faults == {"altered": 1}

    def test_an_event_of_no_record(self) -> None:
        assert self.compared(row=marked(OVERDUE), records=[self.RECORD], seqs=[1, 2]).faults == {"strays": 1}

    def test_an_event_after_a_later_one_of_its_partition(self) -> None:
        records = [self.RECORD, self.RECORD._replace(seq=2)]
        assert self.compared(row=marked(OVERDUE), records=records, seqs=[2, 1]).faults == {"order_inversions": 1}

    def test_a_gap_in_the_sequence(self) -> None:
        found = self.compared(row=marked(OVERDUE), records=[self.RECORD._replace(seq=2)], seqs=[2])
        assert found.faults == {"sequence_gaps": 1}
