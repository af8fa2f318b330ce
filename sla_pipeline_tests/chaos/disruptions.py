"""What goes wrong and when: the whole timeline of a run, drawn from its seed before it starts. Pure.

What belongs here: which disruptions there are, how often, in which order. What does not: carrying them out
(``seats.py``, ``outages.py``). Moments are dealt from shuffled decks and not drawn one by one, so that a short run
meets each of them too.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from sla_pipeline_tests.chaos.broken import Build

__all__ = ["Cut", "Disruption", "Freeze", "Kill", "Outage", "Scenario", "seeded", "timeline"]

Card = TypeVar("Card")


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a run is asked for. ``kills`` counts SIGKILLs of workers, ``tickets`` the breaches there should be at
    least.
    """

    seed: int
    seconds: float = 240.0
    kills: int = 240
    tickets: int = 100_000
    build: Build = Build.SOUND
    workers: int = 3
    operators: int = 12
    holders: int = 2
    outages: bool = True
    """Whether servers end and restart."""


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL to the worker on ``seat`` at the end of ``step``, ``delay`` seconds after it went on; None: wherever it
    happens to be.
    """

    at: float
    seat: int
    step: str | None
    delay: float | None = None

    @property
    def moment(self) -> str:
        """How kills are counted."""
        return f"just after {self.step}" if self.delay is not None else self.step or "random"


@dataclass(frozen=True, slots=True)
class Freeze:
    """SIGSTOP at the end of ``step`` (or ``delay`` seconds after it went on) for at least ``seconds``.

    With ``until``, SIGCONT comes when another worker announces that step, which is held there until the frozen one has
    done what it can; after ``patience`` seconds it comes anyway. ``cut``: its lock in Postgres is taken from it at
    once, as if its network had failed.
    """

    at: float
    seat: int
    step: str
    seconds: float = 0.0
    until: str | None = None
    patience: float = 12.0
    cut: bool = True
    delay: float | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """The session that holds the relay's lock is ended by the server, its worker going on."""

    at: float


@dataclass(frozen=True, slots=True)
class Outage:
    """A server ends and is started again after ``down_seconds``."""

    at: float
    server: Literal["kafka", "postgres"]
    how: Literal["kill", "fast", "immediate"]
    down_seconds: float


Disruption = Kill | Freeze | Cut | Outage

# a kill wherever the worker is, and one at the end of each step: the more often the more an error there would cost
_KILLS_BY_STEP = {
    None: 8,
    "claimed": 1,
    "batch_locked": 1,
    "batch_written": 2,
    "batch_committed": 3,  # after the mark, before the publishing
    "locked": 1,
    "connected": 1,
    "fenced": 1,
    "progress_read": 1,
    "rows_read": 1,
    "begun": 1,
    "produced": 2,  # inside the Kafka transaction
    "flushed": 2,
    "committed": 3,  # between the commit and the position in Postgres
    "advanced": 1,
}
_KILL_DECK = [(step, None) for step, weight in _KILLS_BY_STEP.items() for _ in range(weight)]
# while a commit is under way: the longest delay in seconds, a little more than a commit takes
_DELAYED_KILL_DECK = [("flushed", 0.004), ("flushed", 0.004), ("batch_written", 0.003), ("rows_read", 0.05)]

# zombies: where one freezes, and which step of its successor it comes back at. The first half is what a publisher that
# reads its position before it has fenced would not survive.
_DEADLY = [(step, "progress_read") for step in ("rows_read", "begun", "produced", "flushed") for _ in range(2)]
_ZOMBIE_STEPS = ("locked", "connected", "fenced", "progress_read", "rows_read", "produced", "flushed", "committed")
_SUCCESSOR_STEPS = ("locked", "connected", "fenced", "rows_read", "begun", "produced", "flushed", "committed")

# the relay's lock lives 25 s in silence, a Kafka transaction 30 s, a batch's row locks 15 s: (step, least, most, until,
# cut, delay)
_LONG_FREEZES = (
    ("produced", 31.0, 34.0, None, True, None),
    ("rows_read", 26.0, 29.0, "progress_read", False, None),
    ("batch_written", 16.0, 20.0, None, False, None),
    ("flushed", 31.0, 36.0, None, True, 0.004),
    ("produced", 31.0, 36.0, None, False, None),
    ("committed", 31.0, 36.0, None, True, None),
    ("flushed", 26.0, 29.0, None, False, None),
)
_LONGEST_FREEZE_SECONDS = 40.0
_SECONDS_PER_LONG_FREEZE = 55.0
_SECONDS_PER_ENCOUNTER = 3.5
_SECONDS_PER_CUT = 12.0
_SECONDS_PER_OUTAGE = 18.0
_OUTAGES: tuple[tuple[Literal["kafka", "postgres"], Literal["kill", "fast", "immediate"]], ...] = (
    ("kafka", "kill"),
    ("postgres", "immediate"),
    ("postgres", "fast"),
)


def timeline(scenario: Scenario) -> list[Disruption]:
    """All disruptions of a run in the order of their time, in seconds from its start."""
    drawn: list[Disruption] = [
        *_kills(scenario),
        *_encounters(scenario),
        *_long_freezes(scenario),
        *_cuts(scenario),
        *_outages(scenario),
    ]
    return sorted(drawn, key=lambda disruption: disruption.at)


def seeded(*what: object) -> random.Random:
    """A source of random numbers of its own for each purpose, so that what one thread draws does not change what
    another does.
    """
    return random.Random(" ".join(map(str, what)))  # noqa: S311 - it decides nothing secret


def _deal(rng: random.Random, deck: Sequence[Card]) -> Iterator[Card]:
    """The deck's cards in a random order, and again in another one, for ever."""
    while True:
        yield from rng.sample(deck, len(deck))


def _moments(rng: random.Random, scenario: Scenario, count: int) -> list[float]:
    """``count`` times, one somewhere in each of as many equal parts of the run."""
    return [(part + rng.random()) / count * scenario.seconds for part in range(count)]


def _kills(scenario: Scenario) -> Iterator[Kill]:
    rng = seeded(scenario.seed, "kills")
    deck = _deal(rng, [*_KILL_DECK, *_DELAYED_KILL_DECK])
    for at in _moments(rng, scenario, scenario.kills):
        step, delay = next(deck)
        yield Kill(at, rng.randrange(scenario.workers), step, None if delay is None else rng.uniform(0, delay))


def _encounters(scenario: Scenario) -> Iterator[Freeze]:
    rng = seeded(scenario.seed, "encounters")
    others = zip(_deal(rng, _ZOMBIE_STEPS), _deal(rng, _SUCCESSOR_STEPS), strict=False)
    cards = itertools.chain.from_iterable(zip(_deal(rng, _DEADLY), others, strict=False))
    for at in _moments(rng, scenario, int(scenario.seconds / _SECONDS_PER_ENCOUNTER)):
        step, until = next(cards)
        yield Freeze(at, rng.randrange(scenario.workers), step, until=until)


def _long_freezes(scenario: Scenario) -> Iterator[Freeze]:
    rng = seeded(scenario.seed, "long freezes")
    room = scenario.seconds - _LONGEST_FREEZE_SECONDS
    if room < 0:
        return
    count = 1 + int(room / _SECONDS_PER_LONG_FREEZE)
    for number, card in zip(range(count), itertools.cycle(_LONG_FREEZES), strict=False):
        step, least, most, until, cut, delay = card
        seconds = rng.uniform(least, most)
        at = room * number / count + rng.uniform(0, min(room, 5.0))
        yield Freeze(
            at,
            rng.randrange(scenario.workers),
            step,
            seconds=seconds,
            until=until,
            patience=seconds + 6.0,
            cut=cut,
            delay=None if delay is None else rng.uniform(0, delay),
        )


def _cuts(scenario: Scenario) -> Iterator[Cut]:
    rng = seeded(scenario.seed, "cuts")
    return map(Cut, _moments(rng, scenario, int(scenario.seconds / _SECONDS_PER_CUT)))


def _outage_count(scenario: Scenario) -> int:
    """Each kind at least once, unless the run is too short for any."""
    by_time = int(scenario.seconds / _SECONDS_PER_OUTAGE) if scenario.outages else 0
    return max(by_time, len(_OUTAGES)) if by_time else 0


def _outages(scenario: Scenario) -> Iterator[Outage]:
    rng = seeded(scenario.seed, "outages")
    kinds = _deal(rng, _OUTAGES)
    for at in _moments(rng, scenario, _outage_count(scenario)):
        server, how = next(kinds)
        yield Outage(at, server, how, down_seconds=rng.uniform(0, 4))
