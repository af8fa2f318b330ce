"""The protocol as built keeps its promises in every interleaving; each shortcut breaks one of them, and its shortest history is told.

``pytest -s sla_pipeline_tests/unit/protocol`` prints the histories and the sizes of the searches. ``docs/exactly-once.md`` quotes them.
What belongs here: what is searched, within which bounds, and what must come of it. What does not: the model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import pytest

from sla_pipeline.kafka.relay import STEPS
from sla_pipeline_tests.unit.protocol.explorer import Result, explore
from sla_pipeline_tests.unit.protocol.model import Model, Protocol, Surroundings
from sla_pipeline_tests.unit.protocol.world import IDLE, PROPERTIES, Row, World, agree

PAGE = Path(__file__).parents[3] / "docs" / "exactly-once.md"

NO_DOUBLE, NO_ROW_PASSED, IN_ORDER, NO_FALSE_ALARM = PROPERTIES
NOTHING_WRONG = {name: PROPERTIES[name] for name in (NO_DOUBLE, NO_ROW_PASSED, IN_ORDER)}
# what a double event is when Postgres itself could have known better
NO_KNOWN_ROW_AGAIN = "no row is sent again that Postgres knows to be published"

CALM = Surroundings()
RESTORED = Surroundings(takeover_count=2, restore_count=1)
EMPTIED = Surroundings(recreation_count=1)
ZERO_REWRITTEN = replace(EMPTIED, record_zero_rewritten="always")
TAIL_LOST = replace(CALM, tail_loss_count=1)


def search(
    protocol: Protocol, surroundings: Surroundings, properties: Mapping[str, Callable[[World], bool]], *, names_exchangeable: bool = False
) -> Result[World]:
    model = Model(protocol, surroundings, names_exchangeable=names_exchangeable)
    return explore([World()], model.successors, properties)


def told(history: tuple[str, ...]) -> str:
    """A history with one line for each run of moves of the same actor."""
    moves = [move.split(": ", 1) for move in history]
    return "\n".join(f"{actor + ':':9} {', '.join(what for _, what in run)}" for actor, run in groupby(moves, key=lambda move: move[0]))


def show(text: str) -> None:
    print(f"\n{text}")  # noqa: T201 - seen with pytest -s only


# --- the protocol as built ------------------------------------------------------------------------------------------------------------

SPACES = {
    "none": Surroundings(tickets="abcd", takeover_count=5),
    "the progress topic emptied twice": Surroundings(recreation_count=2),
    "Postgres restored twice": Surroundings(tickets="ab", restore_count=2),
    "Postgres restored and the progress topic emptied": Surroundings(restore_count=1, recreation_count=1),
}


def left_alone(model: Model, world: World) -> World:
    """The world after one publisher has taken over once, without a fault and with nothing else happening."""
    taking_over = True
    while taking_over:
        _, world = next(iter(model.steps_of(world, 0)))
        taking_over = world.publishers[0] != IDLE and world.refusal is None
    return world


def goes_on_where_it_may(surroundings: Surroundings) -> Callable[[World], bool]:
    """Whether a publisher left alone publishes the next batch where Postgres and Kafka agree, and fails closed where they do not."""
    model = Model(surroundings=surroundings)

    def holds(world: World) -> bool:
        if world.publishers != (IDLE, IDLE) or world.refusal or world.epoch == surroundings.takeover_count:
            return True
        after = left_alone(model, world)
        if not agree(world):
            return after.refusal is not None and after.visible == world.visible
        position = world.progress[-1].seq
        batch = world.rows[position : position + surroundings.batch_size]
        reached = max(world.published_seq, position + len(batch))
        return after.refusal is None and after.visible == world.visible + batch and after.published_seq == reached

    return holds


@pytest.mark.parametrize("disaster", SPACES)
def test_the_protocol_as_built_keeps_its_promises_in_every_interleaving(disaster: str) -> None:
    surroundings = SPACES[disaster]
    properties = {**PROPERTIES, "a publisher left alone goes on where it may": goes_on_where_it_may(surroundings)}
    result = search(Protocol(), surroundings, properties, names_exchangeable=True)
    row = f"| {disaster} | {len(surroundings.tickets)} | {surroundings.takeover_count} | {result.state_count:,} |"
    show(row)
    assert (result.violated, told(result.history)) == (None, "")
    assert row in PAGE.read_text(), "docs/exactly-once.md quotes other numbers"


def test_the_model_takes_the_steps_of_the_relay() -> None:
    assert Protocol().steps[1:] == STEPS


def test_the_shortenings_of_the_search_hide_no_world() -> None:
    def worlds(model: Model) -> set[tuple[object, ...]]:
        seen: set[tuple[object, ...]] = set()

        def keep(world: World) -> bool:
            told_apart = (world.rows, world.published_seq, world.era, world.epoch, world.visible, world.harm_count, world.passed)
            seen.add((*told_apart, world.progress[-1:], world.refusal))
            return True

        explore([World()], model.successors, {"kept": keep})
        return seen

    shortened = Model(surroundings=Surroundings(tickets="ab", takeover_count=2, restore_count=1), names_exchangeable=True)
    assert worlds(shortened) == worlds(replace(shortened, shortened=False, names_exchangeable=False))


REFUSALS = {
    "the progress topic holds no record": EMPTIED,
    "progress is beyond next_seq": RESTORED,
    "the row at the position is not the one that was published": RESTORED,
    "progress is behind published_seq": ZERO_REWRITTEN,
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_each_refusal_is_reached(refusal: str) -> None:
    result = search(Protocol(), REFUSALS[refusal], {"never": lambda world: world.refusal != refusal})
    show(f"fails closed, {refusal}\n{told(result.history)}")
    assert result.history[-1].endswith(f"fails closed, {refusal}")


def test_a_restore_that_takes_back_only_what_was_not_published_stops_nothing() -> None:
    wanted = (Row(1, "a", 0), Row(2, "b", 0), Row(3, "c", 1))
    result = search(Protocol(), RESTORED, {"never": lambda world: world.visible != wanted}, names_exchangeable=True)
    assert result.violated == "never"
    assert sum("is restored" in move for move in result.history) == 1


# --- shortcuts ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shortcut:
    """A rule left out, and the first promise that breaks then."""

    protocol: Protocol
    surroundings: Surroundings
    breaks: str


def no_known_row_again(world: World) -> bool:
    sent = world.transaction.rows if world.transaction else ()
    return all(row.seq > world.published_seq for row in sent)


ALL_PROPERTIES = {**PROPERTIES, NO_KNOWN_ROW_AGAIN: no_known_row_again}

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
    "an empty progress topic counts as sequence 0": Shortcut(Protocol(empty_topic_refused=False), EMPTIED, NO_DOUBLE),
    "migrate writes sequence 0 into any empty progress topic": Shortcut(Protocol(), ZERO_REWRITTEN, NO_DOUBLE),
    "and progress is not compared with published_seq": Shortcut(Protocol(published_seq_checked=False), ZERO_REWRITTEN, NO_KNOWN_ROW_AGAIN),
    "the progress record holds no digest": Shortcut(Protocol(digest_of="nothing"), RESTORED, NO_DOUBLE),
    "the digest is the same for two markings of a ticket": Shortcut(Protocol(digest_of="ticket"), RESTORED, NO_DOUBLE),
    "published_seq is raised over another session than the lock's": Shortcut(Protocol(session_of_the_lock=False), RESTORED, NO_ROW_PASSED),
    "the end of the progress topic comes from a read_committed client, and the broker shows it late": Shortcut(
        Protocol(end_from_uncommitted_reader=False), replace(CALM, stable_offset_lags=True), NO_DOUBLE
    ),
    "next_seq is read before the progress": Shortcut(Protocol(next_seq_after_progress=False), CALM, NO_FALSE_ALARM),
    "published_seq is read after the progress": Shortcut(Protocol(published_seq_before_progress=False), CALM, NO_FALSE_ALARM),
}


@pytest.mark.parametrize("name", SHORTCUTS)
def test_the_shortcut_breaks_a_promise(name: str) -> None:
    shortcut = SHORTCUTS[name]
    result = search(shortcut.protocol, shortcut.surroundings, {shortcut.breaks: ALL_PROPERTIES[shortcut.breaks]})
    history = told(result.history)
    show(f"{name}: breaks «{shortcut.breaks}» ({result.state_count:,} states)\n{history}")
    assert result.violated == shortcut.breaks
    assert f"```text\n{history}\n```" in PAGE.read_text(), f"docs/exactly-once.md quotes another history for: {name}"


KNOWN_ROWS_STAY = {NO_KNOWN_ROW_AGAIN: no_known_row_again}

HARMLESS: dict[str, tuple[Protocol, Surroundings, Mapping[str, Callable[[World], bool]]]] = {
    "the end of the progress topic comes from a read_committed client": (Protocol(end_from_uncommitted_reader=False), CALM, PROPERTIES),
    "progress is not compared with published_seq": (
        Protocol(published_seq_checked=False),
        Surroundings(tickets="ab", restore_count=1, recreation_count=1),
        PROPERTIES,
    ),
    "next_seq is read before the progress": (Protocol(next_seq_after_progress=False), CALM, NOTHING_WRONG),
    "published_seq is read after the progress": (Protocol(published_seq_before_progress=False), CALM, NOTHING_WRONG),
    "nothing is left out, and the broker shows the end of the progress topic late": (
        Protocol(),
        replace(CALM, stable_offset_lags=True),
        PROPERTIES,
    ),
    "nothing is left out, and migrate writes sequence 0 into any empty progress topic": (Protocol(), ZERO_REWRITTEN, KNOWN_ROWS_STAY),
    "nothing is left out, and the broker loses the newest progress record": (Protocol(), TAIL_LOST, KNOWN_ROWS_STAY),
}


@pytest.mark.parametrize("what", HARMLESS)
def test_what_is_not_broken(what: str) -> None:
    protocol, surroundings, properties = HARMLESS[what]
    result = search(protocol, surroundings, properties, names_exchangeable=True)
    show(f"{what}: holds «{'», «'.join(properties)}» ({result.state_count:,} states)")
    assert (result.violated, told(result.history)) == (None, "")


def test_a_broker_that_loses_an_acknowledged_progress_record_makes_the_protocol_double_an_event() -> None:
    result = search(Protocol(), TAIL_LOST, {NO_DOUBLE: PROPERTIES[NO_DOUBLE]})
    history = told(result.history)
    show(f"a hole that remains ({result.state_count:,} states)\n{history}")
    assert result.violated == NO_DOUBLE
    assert f"```text\n{history}\n```" in PAGE.read_text()
