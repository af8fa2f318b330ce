"""The alert rules on states of the monitor: when each is pending, fires and is over (SPEC 9.5)."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sla_pipeline.alerting.rules import RULES, Evaluation, Rule, RuleState, evaluate
from sla_pipeline.alerting.status import status_of
from sla_pipeline.cycle import CycleTotals, ErrorList
from sla_pipeline.health import DELAY_BOUNDS_SECONDS, Counters, FinishedCycle, Health, late_count

NOW = datetime(2026, 11, 3, 12, 0, tzinfo=UTC)
_COUNTERS = Counters(NOW - timedelta(days=9), 0, 0, [0] * 14, 0.0, 0)
_REPOSITORY = Path(__file__).parents[3]


def _cycle(minutes_ago: float, *, state: str = "succeeded", errors: int = 0, **numbers: Any) -> FinishedCycle:
    defaults: dict[str, Any] = {"backlog_count": 0, "duration_ms": 900.0, "error_list": ErrorList(count=errors)}
    totals = CycleTotals(**defaults | numbers)
    error = "publishing failed: Kafka did not answer." if errors else None
    return FinishedCycle(1, "run", state, NOW - timedelta(minutes=minutes_ago), totals, error)


def _health(*cycles: FinishedCycle, **facts: Any) -> Health:
    healthy = Health(
        read_at=NOW,
        cycles=cycles or (_cycle(0.5),),
        last_success_at=NOW - timedelta(seconds=30),
        last_seq=10,
        published_seq=10,
        oldest_unpublished_at=None,
        set_aside_count=0,
        set_aside_since=None,
        counters=_COUNTERS,
    )
    return replace(healthy, **facts)


def _state(name: str, health: Health) -> tuple[str, str | None]:
    (found,) = [found for found in evaluate(RULES, health) if found.rule.name == name]
    return found.state.value, found.text


def test_nothing_fires_on_a_healthy_monitor() -> None:
    assert {found.state for found in evaluate(RULES, _health())} == {RuleState.OK}


@pytest.mark.parametrize(
    ("cycles", "state"),
    [
        ([(12, 500), (11, 101), (6, 300), (0.5, 101)], "firing"),
        ([(10, 101), (0.5, 101)], "firing"),
        ([(9.9, 101), (0.5, 101)], "pending"),
        ([(12, 500), (5, 100), (0.5, 101)], "pending"),
        ([(12, 500), (0.5, 100)], "ok"),
        # a backlog that could not be counted ends nothing
        ([(12, 500), (5, None), (0.5, 500)], "firing"),
    ],
)
def test_backlog_above_100_for_ten_minutes(cycles: list[tuple[float, int | None]], state: str) -> None:
    health = _health(*(_cycle(age, backlog_count=backlog) for age, backlog in cycles))
    assert _state("TicketSlaBacklog", health)[0] == state


@pytest.mark.parametrize(("seconds", "state"), [(300, "ok"), (301, "pending"), (329, "pending"), (330, "firing")])
def test_no_successful_cycle_for_five_minutes(seconds: int, state: str) -> None:
    health = _health(_cycle(9), last_success_at=NOW - timedelta(seconds=seconds))
    assert _state("TicketSlaNotRunning", health)[0] == state


def test_not_running_names_the_cause_of_cycles_that_fail_and_the_daemon_when_there_are_none() -> None:
    since = NOW - timedelta(minutes=7)
    failing = _health(_cycle(7), _cycle(1, state="failed", errors=1), last_success_at=since)
    assert _state("TicketSlaNotRunning", failing) == (
        "firing",
        "No cycle has succeeded since 11:53 UTC (7 min). The last cycle failed: publishing failed: Kafka did not "
        "answer.",
    )
    silent = _health(_cycle(7), last_success_at=since)
    assert _state("TicketSlaNotRunning", silent) == (
        "firing",
        "No cycle has succeeded since 11:53 UTC (7 min). No cycle has ended since then: the schedule, the daemon or "
        "the code server is down.",
    )


def test_a_monitor_that_never_ran_is_not_running_five_minutes_after_its_migration() -> None:
    new = _COUNTERS._replace(created_at=NOW - timedelta(minutes=4))
    never: dict[str, Any] = {"cycles": (), "last_success_at": None}
    assert _state("TicketSlaNotRunning", _health(**never, counters=new))[0] == "ok"
    state, text = _state("TicketSlaNotRunning", _health(**never))
    assert state == "firing"
    assert text is not None
    assert text.startswith("No cycle has succeeded ever, since 12:00 UTC (12960 min).")


@pytest.mark.parametrize(("last", "state"), [(30_000.0, "ok"), (30_001.0, "firing")])
def test_a_cycle_longer_than_30_seconds(last: float, state: str) -> None:
    assert _state("TicketSlaCycleSlow", _health(_cycle(2), _cycle(0.6, duration_ms=last)))[0] == state
    assert _state("TicketSlaCycleSlow", _health(_cycle(2, duration_ms=last), _cycle(0.6)))[0] == "ok"


@pytest.mark.parametrize(
    ("ages", "state"),
    [
        ([], "ok"),
        ([1.0], "pending"),
        ([2.9], "pending"),
        ([3.1], "ok"),
        ([5.5, 3.4, 1.2], "firing"),
        # two blips, further apart than three minutes
        ([6.0, 1.0], "pending"),
        ([4.9, 2.0], "pending"),
    ],
)
def test_errors_that_go_on_for_five_minutes(ages: list[float], state: str) -> None:
    cycles = sorted([*((age, 1) for age in ages), (0.4, 0)], reverse=True)
    assert _state("TicketSlaErrors", _health(*(_cycle(age, errors=errors) for age, errors in cycles)))[0] == state


@pytest.mark.parametrize(("late", "state"), [(0, "ok"), (10, "ok"), (11, "firing")])
def test_the_p99_of_the_detection_delay(late: int, state: str) -> None:
    health = _health(_cycle(40, detected_count=600), _cycle(0.6, detected_count=400, late_count=late))
    assert _state("TicketSlaDetectionLate", health)[0] == state


@pytest.mark.parametrize(
    ("age", "state"),
    [(None, "ok"), (119, "ok"), (121, "pending"), (150, "firing")],
)
def test_a_record_that_waits_two_minutes_for_its_publication(age: int | None, state: str) -> None:
    oldest = None if age is None else NOW - timedelta(seconds=age)
    found = _state("TicketSlaPublishingBehind", _health(last_seq=12, oldest_unpublished_at=oldest))
    assert found[0] == state
    if found[1]:
        assert found[1].startswith("2 breaches are marked and their events are not published, the oldest for 2 min.")


def test_publishing_that_has_stopped() -> None:
    stopped = [_cycle(age, state="failed", errors=1, publishing_stopped=True) for age in (2, 1)]
    found = _state("TicketSlaPublishingStopped", _health(*stopped, last_seq=14))
    assert found == ("firing", "Publishing has stopped; 4 events wait. publishing failed: Kafka did not answer.")
    assert _state("TicketSlaPublishingStopped", _health(*stopped, _cycle(0.2)))[0] == "ok"


def test_tickets_set_aside() -> None:
    found = _state("TicketSlaTicketsSetAside", _health(set_aside_count=2, set_aside_since=NOW - timedelta(days=1)))
    assert found[0] == "firing"


def test_late_is_above_the_bucket_that_ends_at_two_minutes() -> None:
    counts = [*DELAY_BOUNDS_SECONDS, 10**6]
    assert late_count(counts) == sum(bound for bound in counts if bound > 120)


def test_names_are_unique() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_runbook_of_each_rule_exists_with_its_section(rule: Rule) -> None:
    path, _, anchor = rule.runbook.partition("#")
    assert path in {
        "docs/runbooks/ticket-sla-backlog.md",
        "docs/runbooks/ticket-sla-not-running.md",
        "docs/runbooks/ticket-sla-not-publishing.md",
    }
    assert not anchor or anchor in _anchors(_REPOSITORY / path)
    assert rule.name in (_REPOSITORY / path).read_text()


def test_the_status_lists_what_fires_first_and_is_green_while_all_is_pending() -> None:
    behind = NOW - timedelta(seconds=200)
    health = _health(_cycle(1, backlog_count=500), last_seq=11, oldest_unpublished_at=behind)
    status = status_of(health, evaluate(RULES, health))
    assert [(trouble.rule.name, trouble.state.value) for trouble in status.troubles] == [
        ("TicketSlaPublishingBehind", "firing"),
        ("TicketSlaBacklog", "pending"),
    ]
    assert not status.green
    assert status.lines()[0] == "NOT green: 1 alerts fire"
    pending: list[Evaluation] = [found for found in status.troubles if found.state is RuleState.PENDING]
    assert status_of(health, pending).green
