"""What the workers' seats share: the orders that wait for a step, the meeting of a frozen worker with its successor,
how far the run is.

What belongs here: this state and its lock. What does not: a process (``seats.py``).
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sla_pipeline_tests.chaos.chronicle import Chronicle
from sla_pipeline_tests.chaos.disruptions import Freeze, Kill

__all__ = ["Encounter", "Stage"]

# a step that no worker reaches in this time is not waited for: the kill meets one where it is
_ORDERED_SECONDS = 20.0


@dataclass(slots=True)
class Encounter:
    """A frozen worker waits for its successor to reach a step, and the successor for what the frozen one does next."""

    zombie: int
    until: str
    opens_at: float
    visitor: int | None = None
    over: bool = False

    def is_open_for(self, seat: int, step: str) -> bool:
        """Whether the worker on ``seat``, which has reached ``step``, is the successor that is waited for."""
        return self.visitor is None and seat != self.zombie and step == self.until and time.monotonic() >= self.opens_at


@dataclass(slots=True)
class Stage:
    """Every field but the first three is guarded by ``changed``, and so is every method: its caller holds it."""

    chronicle: Chronicle
    cut_lock_holder: Callable[[], None]
    changed: threading.Condition = field(default_factory=threading.Condition)
    orders: list[tuple[float, Kill | Freeze]] = field(default_factory=list)
    encounter: Encounter | None = None
    long_freeze: bool = False
    """Whether a worker is frozen for long; one at a time, or nobody would be left to go on."""
    calm: bool = False
    """No pauses and no more disruptions."""
    ending: bool = False
    """Workers are told to end after their cycle."""
    aborted: bool = False
    """Everything ends at once."""

    def order(self, order: Kill | Freeze) -> None:
        """Have ``order`` carried out on the first worker that reaches its step."""
        self.orders.append((time.monotonic(), order))

    def take_order(self, seat: int, step: str) -> Kill | Freeze | None:
        """What is to be done to the worker on ``seat``, which has reached ``step``; it is ordered no more."""
        if self.calm:
            return None
        for entry in self.orders:
            order = entry[1]
            if order.step != step:
                continue
            if isinstance(order, Freeze):
                if (order.until and self.encounter) or (order.seconds and self.long_freeze):
                    continue
                if order.until:
                    self.encounter = Encounter(seat, order.until, opens_at=time.monotonic() + order.seconds)
                self.long_freeze = self.long_freeze or order.seconds > 0
            self.orders.remove(entry)
            return order
        return None

    def take_late_kills(self) -> int:
        """How many kills have waited too long for their step; they are ordered no more. While a server is away most
        steps must wait.
        """
        if self.chronicle.seconds_in_order < _ORDERED_SECONDS:
            return 0
        since = time.monotonic() - _ORDERED_SECONDS
        late = [entry for entry in self.orders if isinstance(entry[1], Kill) and entry[0] < since]
        self.orders = [entry for entry in self.orders if entry not in late]
        return len(late)
