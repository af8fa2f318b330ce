"""State that the worker supervisors share: pending kills and pauses, the zombie encounter, the phase of the run."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sla_pipeline_tests.chaos.disruptions import Kill, Pause
from sla_pipeline_tests.chaos.event_log import EventLog

__all__ = ["Encounter", "RunState"]

# a kill that no worker reaches in this time hits one at any point instead
_PENDING_SECONDS = 20.0


@dataclass(slots=True)
class Encounter:
    """Encounter of a paused worker, the zombie, with its successor.

    The zombie stays paused until the successor reaches step ``until``; there the successor waits for the zombie's end.
    """

    zombie: int
    until: str
    opens_at: float
    successor: int | None = None
    over: bool = False

    def is_open_for(self, worker: int, step: str) -> bool:
        """Return whether ``worker``, which has reached ``step``, becomes the successor."""
        return (
            self.successor is None
            and worker != self.zombie
            and step == self.until
            and time.monotonic() >= self.opens_at
        )


@dataclass(slots=True)
class RunState:
    """Shared state. Callers hold ``changed`` for every field but the first three, and for every method."""

    event_log: EventLog
    cut_lock_holder: Callable[[], None]
    changed: threading.Condition = field(default_factory=threading.Condition)
    pending: list[tuple[float, Kill | Pause]] = field(default_factory=list)
    encounter: Encounter | None = None
    long_pause: bool = False
    """Whether a worker is paused for long. One at a time, so that other workers can continue."""
    disruptions_over: bool = False
    """No more disruptions and no delays between steps."""
    ending: bool = False
    """Workers end after their current cycle."""
    aborted: bool = False
    """All threads and workers end at once."""

    def add(self, item: Kill | Pause) -> None:
        """Schedule ``item`` for the first worker that reaches its step."""
        self.pending.append((time.monotonic(), item))

    def take_due(self, worker: int, step: str) -> Kill | Pause | None:
        """Remove and return the kill or pause for ``worker``, which has reached ``step``."""
        if self.disruptions_over:
            return None
        for entry in self.pending:
            item = entry[1]
            if item.step != step:
                continue
            if isinstance(item, Pause):
                if (item.until and self.encounter) or (item.seconds and self.long_pause):
                    continue
                if item.until:
                    self.encounter = Encounter(worker, item.until, opens_at=time.monotonic() + item.seconds)
                self.long_pause = self.long_pause or item.seconds > 0
            self.pending.remove(entry)
            return item
        return None

    def take_overdue_kills(self) -> int:
        """Remove the kills that have waited too long for their step, and return their number.

        Returns 0 during an outage and shortly after it, since workers reach few steps then.
        """
        if self.event_log.seconds_all_up < _PENDING_SECONDS:
            return 0
        since = time.monotonic() - _PENDING_SECONDS
        late = [entry for entry in self.pending if isinstance(entry[1], Kill) and entry[0] < since]
        self.pending = [entry for entry in self.pending if entry not in late]
        return len(late)
