"""Schedule of the disruptions of a run, drawn from its seed before it starts. Pure.

``worker_supervisor.py`` and ``outages.py`` execute it. Kinds of disruptions come from shuffled lists instead of single
draws, so that a short run contains each kind too.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from sla_pipeline_tests.chaos.broken import Build

__all__ = ["Cut", "Disruption", "Kill", "Outage", "Pause", "Scenario", "seeded", "timeline"]

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Scenario:
    """Parameters of a run. ``kills`` counts SIGKILLs of workers, ``tickets`` is the least number of breaches."""

    seed: int
    seconds: float = 240.0
    kills: int = 240
    tickets: int = 100_000
    build: Build = Build.SOUND
    workers: int = 3
    operators: int = 12
    holders: int = 2
    outages: bool = True
    """Whether servers are stopped and restarted."""


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL at the end of ``step``, or ``delay`` seconds after the worker resumed from it.

    With ``step`` None, the kill hits ``worker`` at any point of its cycle.
    """

    at: float
    worker: int
    step: str | None
    delay: float | None = None

    @property
    def moment(self) -> str:
        """Key under which kills are counted."""
        return f"just after {self.step}" if self.delay is not None else self.step or "random"


@dataclass(frozen=True, slots=True)
class Pause:
    """SIGSTOP at the end of ``step`` (or ``delay`` seconds after the worker resumed from it) for at least ``seconds``.

    With ``until``, SIGCONT follows when another worker, the successor, reaches that step, and the successor waits there
    until the paused worker has ended its cycle. After ``timeout`` seconds SIGCONT follows in any case. With ``cut``,
    Postgres ends the session that holds the relay's lock at once, as if the worker's network had failed.
    """

    at: float
    worker: int
    step: str
    seconds: float = 0.0
    until: str | None = None
    timeout: float = 12.0
    cut: bool = True
    delay: float | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """The server ends the session that holds the relay's lock; its worker keeps running."""

    at: float


@dataclass(frozen=True, slots=True)
class Outage:
    """A server is stopped and restarted after ``down_seconds``."""

    at: float
    server: Literal["kafka", "postgres"]
    how: Literal["kill", "fast", "immediate"]
    down_seconds: float


Disruption = Kill | Pause | Cut | Outage

# relative frequency of kills by step, higher where an error would cost more; None: at any point
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
_KILLS = [(step, None) for step, weight in _KILLS_BY_STEP.items() for _ in range(weight)]
# kills during a commit: (step before it, longest delay in seconds, a little more than the commit takes)
_DELAYED_KILLS = [("flushed", 0.004), ("flushed", 0.004), ("batch_written", 0.003), ("rows_read", 0.05)]

# Zombies: (step of the pause, step of the successor at which the paused worker resumes). A publisher that reads its
# position before fencing fails on every one of these.
_EARLY_ZOMBIES = [(step, "progress_read") for step in ("rows_read", "begun", "produced", "flushed") for _ in range(2)]
_ZOMBIE_STEPS = ("locked", "connected", "fenced", "progress_read", "rows_read", "produced", "flushed", "committed")
_SUCCESSOR_STEPS = ("locked", "connected", "fenced", "rows_read", "begun", "produced", "flushed", "committed")

# (step, least, most, until, cut, delay). Without contact the relay's lock lives 25 s, a Kafka transaction 30 s and a
# batch's row locks 15 s.
_LONG_PAUSES = (
    ("produced", 31.0, 34.0, None, True, None),
    ("rows_read", 26.0, 29.0, "progress_read", False, None),
    ("batch_written", 16.0, 20.0, None, False, None),
    ("flushed", 31.0, 36.0, None, True, 0.004),
    ("produced", 31.0, 36.0, None, False, None),
    ("committed", 31.0, 36.0, None, True, None),
    ("flushed", 26.0, 29.0, None, False, None),
)
_LONGEST_PAUSE_SECONDS = 40.0
_SECONDS_PER_LONG_PAUSE = 55.0
_SECONDS_PER_ENCOUNTER = 3.5
_SECONDS_PER_CUT = 12.0
_SECONDS_PER_OUTAGE = 18.0
_OUTAGES: tuple[tuple[Literal["kafka", "postgres"], Literal["kill", "fast", "immediate"]], ...] = (
    ("kafka", "kill"),
    ("postgres", "immediate"),
    ("postgres", "fast"),
)


def timeline(scenario: Scenario) -> list[Disruption]:
    """Return all disruptions of a run in the order of ``at``, in seconds from its start."""
    disruptions: list[Disruption] = [
        *_kills(scenario),
        *_encounters(scenario),
        *_long_pauses(scenario),
        *_cuts(scenario),
        *_outages(scenario),
    ]
    return sorted(disruptions, key=lambda disruption: disruption.at)


def seeded(*purpose: object) -> random.Random:
    """Return a random generator for one purpose, so that the draws of one thread do not affect another."""
    return random.Random(" ".join(map(str, purpose)))  # noqa: S311 - not for secrets


def _reshuffled(rng: random.Random, items: Sequence[Item]) -> Iterator[Item]:
    """Yield the items endlessly, in a new random order each time."""
    while True:
        yield from rng.sample(items, len(items))


def _moments(rng: random.Random, scenario: Scenario, count: int) -> list[float]:
    """Return ``count`` times, one at random in each of as many equal parts of the run."""
    return [(part + rng.random()) / count * scenario.seconds for part in range(count)]


def _kills(scenario: Scenario) -> Iterator[Kill]:
    rng = seeded(scenario.seed, "kills")
    moments = _reshuffled(rng, [*_KILLS, *_DELAYED_KILLS])
    for at in _moments(rng, scenario, scenario.kills):
        step, delay = next(moments)
        yield Kill(at, rng.randrange(scenario.workers), step, None if delay is None else rng.uniform(0, delay))


def _encounters(scenario: Scenario) -> Iterator[Pause]:
    rng = seeded(scenario.seed, "encounters")
    others = zip(_reshuffled(rng, _ZOMBIE_STEPS), _reshuffled(rng, _SUCCESSOR_STEPS), strict=False)
    pairs = itertools.chain.from_iterable(zip(_reshuffled(rng, _EARLY_ZOMBIES), others, strict=False))
    for at in _moments(rng, scenario, int(scenario.seconds / _SECONDS_PER_ENCOUNTER)):
        step, until = next(pairs)
        yield Pause(at, rng.randrange(scenario.workers), step, until=until)


def _long_pauses(scenario: Scenario) -> Iterator[Pause]:
    rng = seeded(scenario.seed, "long pauses")
    room = scenario.seconds - _LONGEST_PAUSE_SECONDS
    if room < 0:
        return
    count = 1 + int(room / _SECONDS_PER_LONG_PAUSE)
    for number, pause in zip(range(count), itertools.cycle(_LONG_PAUSES), strict=False):
        step, least, most, until, cut, delay = pause
        seconds = rng.uniform(least, most)
        at = room * number / count + rng.uniform(0, min(room, 5.0))
        yield Pause(
            at,
            rng.randrange(scenario.workers),
            step,
            seconds=seconds,
            until=until,
            timeout=seconds + 6.0,
            cut=cut,
            delay=None if delay is None else rng.uniform(0, delay),
        )


def _cuts(scenario: Scenario) -> Iterator[Cut]:
    rng = seeded(scenario.seed, "cuts")
    return map(Cut, _moments(rng, scenario, int(scenario.seconds / _SECONDS_PER_CUT)))


def _outage_count(scenario: Scenario) -> int:
    """Return at least one outage of each kind, or 0 when the run is too short."""
    by_time = int(scenario.seconds / _SECONDS_PER_OUTAGE) if scenario.outages else 0
    return max(by_time, len(_OUTAGES)) if by_time else 0


def _outages(scenario: Scenario) -> Iterator[Outage]:
    rng = seeded(scenario.seed, "outages")
    kinds = _reshuffled(rng, _OUTAGES)
    for at in _moments(rng, scenario, _outage_count(scenario)):
        server, how = next(kinds)
        yield Outage(at, server, how, down_seconds=rng.uniform(0, 4))
