"""Event log of a run: one JSON line per event, counts, and the time until cycles succeed again after a disruption.

Thread safe.
"""

import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TextIO

__all__ = ["EXPECTED_ERRORS", "EventLog"]

EXPECTED_ERRORS = frozenset(
    {
        "PostgresUnavailable",
        # a lock or a statement exceeded its timeout
        "PostgresBusy",
        "KafkaUnavailable",
        "PublisherBusy",
        "PublisherFenced",
        # a paused worker held the locks of a batch's rows, or of the sequence, for too long
        "LockNotAvailable",
    }
)
"""Errors that a cycle may end with while servers are down and other workers paused.

Any other error, ``FailClosed`` above all, is a fault of the product.
"""

# an outage that lasts longer stops the timeline
_OUTAGE_SECONDS = 3.0


class EventLog:
    """Counts of events, and the history as JSON lines in ``path``."""

    def __init__(self, path: Path) -> None:
        self.began = time.monotonic()
        """Start of the disruptions; earlier events have negative times."""
        self.kills: Counter[str] = Counter()
        self.restarts: Counter[str] = Counter()
        self.pauses: Counter[str] = Counter()
        self.cuts = 0
        self.encounters = 0
        self.cycles: Counter[str] = Counter()
        """Cycles by outcome: ``ok`` or the error's class."""
        self.unexpected: Counter[str] = Counter()
        self.longest_recovery_s = 0.0
        self.slowest_to_recover = ""
        self.longest_without_success_s = 0.0
        """Longest time between two successful cycles, outages included."""
        self._lock = threading.Lock()
        self._file: TextIO = path.open("w")
        self._unrecovered: list[tuple[str, float]] = []
        self._down: set[str] = set()
        self._last_success = 0.0
        self._all_up_since = self._down_since = self._last_tick = self.began
        self.timeline_seconds = 0.0
        """Seconds of the timeline.

        It stops while a server takes long to start; otherwise a busy machine would run only half of the timeline.
        """

    def begin(self) -> None:
        """Start the timeline."""
        self.began = self._last_tick = time.monotonic()
        self.timeline_seconds = self._last_success = 0.0

    @property
    def now(self) -> float:
        """Seconds since the disruptions began."""
        return time.monotonic() - self.began

    def write(self, what: str, **facts: object) -> None:
        """Write one line."""
        with self._lock:
            self._write(what, facts)

    def killed(self, worker: int, moment: str) -> None:
        """Record the kill of a worker."""
        with self._lock:
            self.kills[moment] += 1
            self._disrupted(f"kill ({moment})", {"worker": worker})

    def paused(self, worker: int, moment: str, facts: dict[str, object]) -> None:
        """Record the pause of a worker."""
        with self._lock:
            self.pauses[moment] += 1
            self._disrupted(f"pause ({moment})", {"worker": worker, **facts})

    def session_cut(self) -> None:
        """Record the end of the session that held the relay's lock."""
        with self._lock:
            self.cuts += 1
            self._disrupted("cut", {})

    def server_stopped(self, server: str, how: str) -> None:
        """Record the stop of a server."""
        with self._lock:
            if not self._down:
                self._down_since = time.monotonic()
            self._down.add(server)
            self._write(f"{server} {how}", {})

    def tick(self) -> None:
        """Advance ``timeline_seconds`` by the time since the last call."""
        with self._lock:
            now = time.monotonic()
            if not self._down or now - self._down_since < _OUTAGE_SECONDS:
                self.timeline_seconds += now - self._last_tick
            self._last_tick = now

    @property
    def seconds_all_up(self) -> float:
        """Seconds for which all servers have been up; 0 while one is down."""
        with self._lock:
            return 0.0 if self._down else time.monotonic() - self._all_up_since

    def server_restarted(self, server: str, how: str) -> None:
        """Record the restart of a server.

        No cycle could succeed before, so all pending recovery times count from now.
        """
        with self._lock:
            self.restarts[f"{server} {how}"] += 1
            self._down.discard(server)
            self._all_up_since = time.monotonic()
            self._unrecovered = [(name, self.now) for name, _ in self._unrecovered]
            self._disrupted(f"{server} back", {"how": how})

    def cycle_ended(self, worker: int, outcome: str, detail: str) -> None:
        """Record the end of a cycle.

        ``outcome`` is ``ok`` or the class of the error, ``detail`` the counts or the error's text.
        """
        with self._lock:
            self.cycles[outcome] += 1
            if outcome == "ok":
                self.longest_without_success_s = max(self.longest_without_success_s, self.now - self._last_success)
                self._last_success = self.now
                for name, since in self._unrecovered:
                    if self.now - since > self.longest_recovery_s:
                        self.longest_recovery_s, self.slowest_to_recover = self.now - since, name
                self._unrecovered.clear()
            elif outcome not in EXPECTED_ERRORS:
                self.unexpected[f"{outcome}: {detail}"] += 1
            self._write("cycle", {"worker": worker, "outcome": outcome, "detail": detail})

    def died(self, worker: int, exit_code: int | None) -> None:
        """Record the end of a worker that was not killed."""
        with self._lock:
            self.unexpected[f"worker ended unexpectedly, exit code {exit_code}"] += 1
            self._write("died", {"worker": worker, "exit_code": exit_code})

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()

    def _disrupted(self, name: str, facts: dict[str, object]) -> None:
        self._unrecovered.append((name, self.now))
        self._write(name, facts)

    def _write(self, what: str, facts: dict[str, object]) -> None:
        self._file.write(json.dumps({"t": round(self.now, 4), "what": what, **facts}, default=str) + "\n")
