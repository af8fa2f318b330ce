"""The protocol as built keeps its guarantees in every interleaving; each shortcut breaks one, in a shortest history.

``pytest -s sla_pipeline_tests/unit/protocol`` prints the histories and the sizes of the searches, which
``docs/exactly-once.md`` quotes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, product
from pathlib import Path

import pytest

from sla_pipeline.errors import FailClosed
from sla_pipeline.kafka.consistency import require_agreement, require_progress, waiting_records
from sla_pipeline.kafka.progress import Progress
from sla_pipeline.kafka.relay import STEPS
from sla_pipeline.outbox import BreachRecord
from sla_pipeline_tests.unit.protocol.explorer import Result, explore
from sla_pipeline_tests.unit.protocol.model import Model, Protocol, Surroundings
from sla_pipeline_tests.unit.protocol.world import IDLE, NO_RECORD, PROPERTIES, ZERO, Publisher, Row, World, agree

# The largest search takes 15 s on an idle processor, and CI's are not idle.
pytestmark = pytest.mark.timeout(600)

PAGE = Path(__file__).parents[3] / "docs" / "exactly-once.md"

Properties = Mapping[str, Callable[[World], bool]]
NO_DOUBLE, NO_ROW_PASSED, IN_ORDER, NO_FALSE_ALARM = PROPERTIES
NOTHING_WRONG = {name: PROPERTIES[name] for name in (NO_DOUBLE, NO_ROW_PASSED, IN_ORDER)}
GOES_ON = "a publisher left alone goes on where it may, and nowhere else"

CALM = Surroundings()
RESTORED = Surroundings(takeover_count=2, restore_count=1)
EMPTIED = Surroundings(recreation_count=1)
ZERO_REWRITTEN = replace(EMPTIED, record_zero_rewritten="always")
TAIL_LOST = replace(CALM, tail_loss_count=1)
MARKERS_DROPPED = Surroundings(tickets="ab", takeover_count=4, marker_loss_count=1)


def search(
    protocol: Protocol, surroundings: Surroundings, properties: Properties, *, names_exchangeable: bool = False
) -> Result[World]:
    model = Model(protocol, surroundings, names_exchangeable=names_exchangeable)
    return explore([World()], model.successors, properties)


def rendered(history: tuple[str, ...]) -> str:
    """Return a history with one line for each run of moves of the same actor."""
    moves = [move.split(": ", 1) for move in history]
    return "\n".join(
        f"{actor + ':':9} {', '.join(what for _, what in run)}"
        for actor, run in groupby(moves, key=lambda move: move[0])
    )


def show(text: str) -> None:
    print(f"\n{text}")  # noqa: T201 - seen with pytest -s only


def left_alone(model: Model, world: World) -> tuple[tuple[str, ...], World]:
    """Return the moves of one takeover without a fault or any other move, and the world after it."""
    history: list[str] = []
    while not history or (world.publishers[0] != IDLE and world.refusal is None):
        move, world = next(iter(model.steps_of(world, 0)))
        history.append(move)
    return tuple(history), world


def goes_on(protocol: Protocol, surroundings: Surroundings) -> Callable[[World], bool]:
    """Return the property that a publisher publishes where Postgres and Kafka agree, and else fails closed."""
    model = Model(protocol, surroundings)

    def holds(world: World) -> bool:
        if world.publishers != (IDLE, IDLE) or world.refusal or world.epoch == surroundings.takeover_count:
            return True
        _, after = left_alone(model, world)
        if not agree(world):
            return after.refusal is not None and after.visible == world.visible
        position = world.progress[-1].seq
        batch = world.rows[position : position + surroundings.batch_size]
        reached = max(world.published_seq, position + len(batch))
        return after.refusal is None and after.visible == world.visible + batch and after.published_seq == reached

    return holds


def recovered(model: Model, world: World) -> World | None:
    """Return the world after a recovery left alone; None where it refuses."""
    begun = False
    while world.repair or not begun:
        move, world = next(iter(model.recovery(world)), ("", world))
        if not move or move == "recover: crashes":
            return None
        begun = True
    return world


def is_repaired_by_recovery(surroundings: Surroundings) -> Callable[[World], bool]:
    """Return the property that a recovery left alone makes Postgres and Kafka agree."""
    model = Model(surroundings=surroundings)

    def holds(world: World) -> bool:
        if world.repair or world.epoch == surroundings.takeover_count:
            return True
        after = recovered(model, world)
        return after is not None and agree(after)

    return holds


def is_made_whole_by_recovery(surroundings: Surroundings) -> Callable[[World], bool]:
    """Return the property that at most two recoveries end with each published row on the topic once, and no other."""
    model = Model(
        surroundings=replace(
            surroundings, takeover_count=surroundings.takeover_count + 2 * (1 + len(surroundings.tickets))
        )
    )

    def holds(world: World) -> bool:
        if world.repair:
            return True
        once = recovered(model, world)
        twice = once and recovered(model, once)
        if twice is None or not agree(twice):
            return False
        return sorted(twice.topic) == list(twice.rows[: twice.progress[-1].seq])

    return holds


# --- the protocol as built

SPACES = {
    "none": Surroundings(tickets="abcd", takeover_count=5),
    "the progress topic emptied twice": Surroundings(recreation_count=2),
    "Postgres restored twice": Surroundings(tickets="ab", restore_count=2),
    "Postgres restored and the progress topic emptied": Surroundings(restore_count=1, recreation_count=1),
    "both, and `recover` at any moment": Surroundings(
        tickets="ab", restore_count=1, recreation_count=1, recoveries=True
    ),
}


@pytest.mark.parametrize("disaster", SPACES)
def test_the_protocol_as_built_keeps_its_promises_in_every_interleaving(disaster: str) -> None:
    surroundings = SPACES[disaster]
    properties = {**PROPERTIES, GOES_ON: goes_on(Protocol(), surroundings)}
    if surroundings.recoveries:
        properties["recovery makes Postgres and Kafka agree"] = is_repaired_by_recovery(surroundings)
    result = search(Protocol(), surroundings, properties, names_exchangeable=True)
    row = f"| {disaster} | {len(surroundings.tickets)} | {surroundings.takeover_count} | {result.state_count:,} |"
    show(row)
    assert (result.violated, rendered(result.history)) == (None, "")
    assert row in PAGE.read_text(), "docs/exactly-once.md quotes other numbers"


def makes_visible_what_hung(protocol: Protocol, surroundings: Surroundings) -> Callable[[World], bool]:
    """Return the property that a publisher left alone ends what hangs and passes no row over, or fails closed."""
    model = Model(protocol, surroundings)

    def holds(world: World) -> bool:
        if world.publishers != (IDLE, IDLE) or world.refusal or world.epoch > surroundings.takeover_count - 2:
            return True
        _, after = left_alone(model, world)
        if after.refusal:
            return after.visible == world.visible
        return after.hanging is None and all(row in after.visible for row in after.rows[: after.progress[-1].seq])

    return holds


def test_end_markers_that_the_broker_drops_double_nothing_and_lose_nothing() -> None:
    """A row may be recorded as published and hang, because the commit was answered: that property is not checked."""
    properties = {name: PROPERTIES[name] for name in (NO_DOUBLE, IN_ORDER)}
    properties["what hangs is published, or the publisher fails closed"] = makes_visible_what_hung(
        Protocol(), MARKERS_DROPPED
    )
    result = search(Protocol(), MARKERS_DROPPED, properties, names_exchangeable=True)
    bounds = f"{len(MARKERS_DROPPED.tickets)} | {MARKERS_DROPPED.takeover_count}"
    row = f"| the end markers of a transaction dropped | {bounds} | {result.state_count:,} |"
    show(row)
    assert (result.violated, rendered(result.history)) == (None, "")
    assert row in PAGE.read_text(), "docs/exactly-once.md quotes other numbers"


def test_a_commit_that_was_answered_and_noted_and_hangs_is_published_by_the_next_publisher() -> None:
    model = Model(surroundings=MARKERS_DROPPED)

    def never(world: World) -> bool:
        hangs = (
            world.hanging
            and world.hanging.rows
            and world.hanging.progress
            and world.published_seq
            and not world.visible
        )
        if not hangs or world.publishers != (IDLE, IDLE):
            return True
        _, after = left_alone(model, world)
        return after.visible != world.rows

    assert search(Protocol(), MARKERS_DROPPED, {"never": never}).violated == "never"


def test_recovery_takes_nothing_for_published_whose_event_has_expired() -> None:
    surroundings = Surroundings(tickets="ab", restore_count=1, expiry_count=2, recoveries=True)
    result = search(Protocol(), surroundings, PROPERTIES, names_exchangeable=True)
    show(f"recovery, with events that expire: {result.state_count:,} states")
    assert (result.violated, rendered(result.history)) == (None, "")


# Consumers that read an event before its topic was deleted read it again after it was published again; no consumer
# reads it twice on one topic.
ON_ONE_TOPIC: Properties = {
    "no ticket has two events on the topic": lambda world: len({row.ticket for row in world.topic}) == len(world.topic),
    "an event that is published again is the same one": lambda world: (
        len({row.ticket for row in world.visible}) == len({*world.visible})
    ),
    NO_FALSE_ALARM: PROPERTIES[NO_FALSE_ALARM],
}
WITHOUT_EVENT_TOPIC = {
    "the event topic emptied twice": Surroundings(tickets="ab", takeover_count=4, event_topic_recreation_count=2),
    "the event topic emptied, one row to a transaction": Surroundings(
        tickets="ab", batch_size=1, takeover_count=5, event_topic_recreation_count=1
    ),
    "both topics emptied": Surroundings(tickets="ab", event_topic_recreation_count=1, recreation_count=1),
    "the event topic emptied, and Postgres restored": Surroundings(
        tickets="ab", event_topic_recreation_count=1, restore_count=1
    ),
    "the event topic emptied, two recoveries at once": Surroundings(
        tickets="a", takeover_count=5, event_topic_recreation_count=1, recoveries_overlap=True
    ),
}


@pytest.mark.parametrize("disaster", WITHOUT_EVENT_TOPIC)
def test_missing_events_are_published_again_once_in_every_interleaving(disaster: str) -> None:
    surroundings = replace(WITHOUT_EVENT_TOPIC[disaster], recoveries=True)
    properties = {**ON_ONE_TOPIC, GOES_ON: goes_on(Protocol(), surroundings)}
    if not surroundings.restore_count:
        # With a restore, records lost on both sides stay undecided.
        properties["recovery makes the topic whole"] = is_made_whole_by_recovery(surroundings)
    result = search(Protocol(), surroundings, properties, names_exchangeable=True)
    row = f"| {disaster} | {len(surroundings.tickets)} | {surroundings.takeover_count} | {result.state_count:,} |"
    show(row)
    assert (result.violated, rendered(result.history)) == (None, "")
    assert row in PAGE.read_text(), "docs/exactly-once.md quotes other numbers"


def test_missing_events_go_out_in_several_transactions() -> None:
    """The first of two transactions is on the new topic, the second is still to be sent."""
    surroundings = replace(WITHOUT_EVENT_TOPIC["the event topic emptied, one row to a transaction"], recoveries=True)

    def never(world: World) -> bool:
        return not (
            world.dropped_count == 2 and len(world.topic) == 1 and world.repair and len(world.repair.missing) == 1
        )

    assert search(Protocol(), surroundings, {"never": never}, names_exchangeable=True).violated == "never"


def test_a_recovery_that_does_not_look_at_the_progress_doubles_what_another_one_sent() -> None:
    surroundings = replace(WITHOUT_EVENT_TOPIC["the event topic emptied, two recoveries at once"], recoveries=True)
    result = search(Protocol(progress_checked_before_sending_again=False), surroundings, ON_ONE_TOPIC)
    history = rendered(result.history)
    show(f"recovery does not look at the progress ({result.state_count:,} states)\n{history}")
    assert result.violated == "no ticket has two events on the topic"
    assert f"```text\n{history}\n```" in PAGE.read_text()


def test_the_model_takes_the_steps_of_the_relay() -> None:
    assert Protocol().steps[1:] == STEPS


def test_the_model_refuses_what_the_relay_refuses_and_sends_what_it_sends() -> None:
    def record(row: Row) -> BreachRecord:
        return BreachRecord(row.seq, row.ticket, f"run {row.era}", row.ticket)

    def relay(position: Row, published_seq: int, rows: tuple[Row, ...]) -> tuple[Row, ...] | None:
        written = Progress.of([record(position)], "run") if position.seq else Progress.without_events(0, "", "migrate")
        from_position = [record(row) for row in rows if row.seq >= position.seq]
        try:
            progress = require_progress(None if position == NO_RECORD else written, "topic")
            require_agreement(progress, published_before=published_seq, last_seq=len(rows))
            waiting = waiting_records(progress, from_position, last_seq=len(rows))
        except FailClosed:
            return None
        return tuple(row for row in rows if record(row) in waiting)

    def model(position: Row, published_seq: int, rows: tuple[Row, ...]) -> tuple[Row, ...] | None:
        me = Publisher("progress_read", epoch=1, published_seq=published_seq, position=position)
        world = World((me, IDLE), rows, epoch=1)
        ((_, after),) = Model(surroundings=Surroundings(batch_size=3)).steps_of(world, 0)
        return None if after.refusal else after.publishers[0].batch

    ever = [Row(seq, ticket, era) for seq, ticket, era in product((1, 2, 3), "ab", (0, 1))]
    tables = [()] + [
        rows
        for n in (1, 2, 3)
        for rows in product(*([row for row in ever if row.seq == seq] for seq in range(1, n + 1)))
    ]
    cases = [
        (position, published_seq, rows)
        for position in (NO_RECORD, ZERO, *ever)
        for rows in tables
        for published_seq in range(len(rows) + 1)
    ]
    assert [case for case in cases if relay(*case) != model(*case)] == []


def test_the_shortenings_of_the_search_hide_no_world() -> None:
    def worlds(model: Model) -> set[tuple[object, ...]]:
        seen: set[tuple[object, ...]] = set()

        def keep(world: World) -> bool:
            distinction = (
                world.rows,
                world.published_seq,
                world.era,
                world.epoch,
                world.visible,
                world.harm_count,
                world.passed,
            )
            seen.add((*distinction, world.dropped_count, world.progress[-1:], world.refusal))
            return True

        explore([World()], model.successors, {"kept": keep})
        return seen

    for surroundings in (
        Surroundings(tickets="a", takeover_count=2, restore_count=1, recreation_count=1),
        Surroundings(tickets="a", event_topic_recreation_count=1, recoveries=True),
    ):
        shortened = Model(surroundings=surroundings, names_exchangeable=True)
        assert worlds(shortened) == worlds(replace(shortened, shortened=False, names_exchangeable=False))


REFUSALS = {
    "the progress topic holds no record": EMPTIED,
    "progress is beyond last_seq": RESTORED,
    "the row at the position is not the one that was published": RESTORED,
    "progress is behind published_seq": ZERO_REWRITTEN,
    "a part of a transaction without an end is visible": MARKERS_DROPPED,
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_each_refusal_is_reached(refusal: str) -> None:
    result = search(Protocol(), REFUSALS[refusal], {"never": lambda world: world.refusal != refusal})
    show(f"fails closed, {refusal}\n{rendered(result.history)}")
    assert result.history[-1].endswith(f"fails closed, {refusal}")


def test_a_restore_that_takes_back_only_what_was_not_published_stops_nothing() -> None:
    wanted = (Row(1, "a", 0), Row(2, "b", 0), Row(3, "c", 1))
    result = search(Protocol(), RESTORED, {"never": lambda world: world.visible != wanted}, names_exchangeable=True)
    assert result.violated == "never"
    assert sum("is restored" in move for move in result.history) == 1


# --- shortcuts


@dataclass(frozen=True)
class Shortcut:
    """A rule left out, and the promise that breaks then."""

    protocol: Protocol
    surroundings: Surroundings
    breaks: str


SHORTCUTS = {
    "the progress is read before the fence": Shortcut(Protocol(fence_before_progress=False), CALM, NO_DOUBLE),
    "one producer sends several transactions": Shortcut(Protocol(one_transaction_per_producer=False), CALM, NO_DOUBLE),
    "a commit without a reply counts as failed, and its rows are sent again": Shortcut(
        Protocol(takeover_after_failed_commit=False), CALM, NO_DOUBLE
    ),
    "the position is kept in Postgres alone": Shortcut(Protocol(position_in_kafka=False), CALM, NO_DOUBLE),
    "a record that did not reach the broker does not end the takeover": Shortcut(
        Protocol(failed_delivery_ends_takeover=False), CALM, NO_ROW_PASSED
    ),
    "the progress record names the last record read, where fewer were handed over": Shortcut(
        Protocol(progress_of_delivered=False), CALM, NO_ROW_PASSED
    ),
    "nobody looks for a transaction without an end": Shortcut(
        Protocol(hanging_ended=False), MARKERS_DROPPED, NO_DOUBLE
    ),
    "an empty progress topic counts as sequence 0": Shortcut(Protocol(empty_topic_refused=False), EMPTIED, NO_DOUBLE),
    "migrate writes sequence 0 into any empty progress topic": Shortcut(Protocol(), ZERO_REWRITTEN, NO_DOUBLE),
    "and progress is not compared with published_seq": Shortcut(
        Protocol(published_seq_checked=False), ZERO_REWRITTEN, GOES_ON
    ),
    "the progress record holds no digest": Shortcut(Protocol(digest_of="nothing"), RESTORED, NO_DOUBLE),
    "the digest is the same for two markings of a ticket": Shortcut(Protocol(digest_of="ticket"), RESTORED, NO_DOUBLE),
    "published_seq is raised over another session than the lock's": Shortcut(
        Protocol(session_of_the_lock=False), RESTORED, NO_ROW_PASSED
    ),
    "the end of the progress topic comes from a read_committed client, and the broker shows it late": Shortcut(
        Protocol(end_from_uncommitted_reader=False), replace(CALM, stable_offset_lags=True), NO_DOUBLE
    ),
    "last_seq is read before the progress": Shortcut(Protocol(next_seq_after_progress=False), CALM, NO_FALSE_ALARM),
    "published_seq is read after the progress": Shortcut(
        Protocol(published_seq_before_progress=False), CALM, NO_FALSE_ALARM
    ),
}


def shortest_history(shortcut: Shortcut) -> tuple[int, str]:
    """How many states were seen, and how the promise breaks."""
    properties = {**PROPERTIES, GOES_ON: goes_on(shortcut.protocol, shortcut.surroundings)}
    result = search(shortcut.protocol, shortcut.surroundings, {shortcut.breaks: properties[shortcut.breaks]})
    assert result.violated == shortcut.breaks
    history = result.history
    if shortcut.breaks == GOES_ON and result.final:
        history += left_alone(Model(shortcut.protocol, shortcut.surroundings), result.final)[0]
    return result.state_count, rendered(history)


@pytest.mark.parametrize("name", SHORTCUTS)
def test_the_shortcut_breaks_a_promise(name: str) -> None:
    state_count, history = shortest_history(SHORTCUTS[name])
    show(f"{name}: breaks «{SHORTCUTS[name].breaks}» ({state_count:,} states)\n{history}")
    assert f"```text\n{history}\n```" in PAGE.read_text(), f"docs/exactly-once.md quotes another history for: {name}"


def test_a_broker_that_loses_an_acknowledged_progress_record_makes_the_protocol_double_an_event() -> None:
    state_count, history = shortest_history(Shortcut(Protocol(), TAIL_LOST, NO_DOUBLE))
    show(f"a hole that remains ({state_count:,} states)\n{history}")
    assert f"```text\n{history}\n```" in PAGE.read_text()


HARMLESS: dict[str, tuple[Protocol, Surroundings, Properties]] = {
    "the end of the progress topic comes from a read_committed client": (
        Protocol(end_from_uncommitted_reader=False),
        CALM,
        PROPERTIES,
    ),
    "progress is not compared with published_seq": (
        Protocol(published_seq_checked=False),
        Surroundings(tickets="ab", restore_count=1, recreation_count=1),
        PROPERTIES,
    ),
    "last_seq is read before the progress": (Protocol(next_seq_after_progress=False), CALM, NOTHING_WRONG),
    "published_seq is read after the progress": (Protocol(published_seq_before_progress=False), CALM, NOTHING_WRONG),
    "nothing is left out, and the broker shows the end of the progress topic late": (
        Protocol(),
        replace(CALM, stable_offset_lags=True),
        PROPERTIES,
    ),
    "nothing is left out, and migrate writes sequence 0 into any empty progress topic": (
        Protocol(),
        ZERO_REWRITTEN,
        {GOES_ON: goes_on(Protocol(), ZERO_REWRITTEN)},
    ),
    "nothing is left out, and the broker loses the newest progress record": (
        Protocol(),
        TAIL_LOST,
        {GOES_ON: goes_on(Protocol(), TAIL_LOST)},
    ),
}


@pytest.mark.parametrize("what", HARMLESS)
def test_what_does_not_break(what: str) -> None:
    protocol, surroundings, properties = HARMLESS[what]
    result = search(protocol, surroundings, properties, names_exchangeable=True)
    show(f"{what}: holds «{'», «'.join(properties)}» ({result.state_count:,} states)")
    assert (result.violated, rendered(result.history)) == (None, "")
