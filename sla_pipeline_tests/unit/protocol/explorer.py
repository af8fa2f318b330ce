"""Breadth-first search through every state that a model can reach; independent of the model."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Result", "explore"]

State = TypeVar("State", bound=Hashable)


@dataclass(frozen=True)
class Result(Generic[State]):
    """Result of a search: the whole space without a violation, or the first violation."""

    state_count: int
    violated: str | None = None
    history: tuple[str, ...] = ()
    """Labels of a shortest path from an initial state to the violation.

    The search is breadth-first, so there is no shorter one.
    """
    final: State | None = None
    """State that violates an invariant."""


def explore(
    initial: Iterable[State],
    successors: Callable[[State], Iterable[tuple[str, State]]],
    invariants: Mapping[str, Callable[[State], bool]],
) -> Result[State]:
    """Visit all states reachable from ``initial``; stop at the first that breaks one of ``invariants``."""
    came_from: dict[State, tuple[State, str] | None] = {}
    waiting: deque[State] = deque()

    def visit(state: State, origin: tuple[State, str] | None) -> str | None:
        known_count = len(came_from)
        # One look-up instead of two: hashing a nested state is most of the search's cost.
        came_from.setdefault(state, origin)
        if len(came_from) == known_count:
            return None
        waiting.append(state)
        return next((name for name, holds in invariants.items() if not holds(state)), None)

    def found(violated: str, state: State) -> Result[State]:
        labels = []
        origin = came_from[state]
        while origin is not None:
            labels.append(origin[1])
            origin = came_from[origin[0]]
        return Result(len(came_from), violated, tuple(reversed(labels)), state)

    for state in initial:
        if violated := visit(state, None):
            return found(violated, state)
    while waiting:
        state = waiting.popleft()
        for label, successor in successors(state):
            if violated := visit(successor, (state, label)):
                return found(violated, successor)
    return Result(len(came_from))
