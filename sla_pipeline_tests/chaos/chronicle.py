"""What happened in a run: one JSON line for each event, the counts of them, and how long each disruption kept all
cycles from succeeding.

What belongs here: keeping and counting. What does not: judging what it means for tickets (``verdict.py``). Used by many
threads.
"""

import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TextIO

__all__ = ["EXPECTED_ERRORS", "Chronicle"]

EXPECTED_ERRORS = frozenset(
    {
        "PostgresUnavailable",
        # a lock or a statement took longer than its time-out
        "PostgresBusy",
        "KafkaUnavailable",
        "PublisherBusy",
        "PublisherFenced",
        # a batch whose rows' locks, or the sequence's, a frozen worker held for too long
        "LockNotAvailable",
    }
)
"""What a cycle may end with while servers go away and rivals freeze. Anything else, ``FailClosed`` above all, is a
fault of the product.
"""

# a server that is away for longer stops the timeline
_OUTAGE_SECONDS = 3.0


class Chronicle:
    """Counts, and the history as JSON lines in ``path``."""

    def __init__(self, path: Path) -> None:
        self.began = time.monotonic()
        """When the disruptions began; what was before counts below zero."""
        self.kills: Counter[str] = Counter()
        self.restarts: Counter[str] = Counter()
        self.freezes: Counter[str] = Counter()
        self.cuts = 0
        self.encounters = 0
        self.cycles: Counter[str] = Counter()
        """Cycles by how they ended: ``ok`` or the error's class."""
        self.unexpected: Counter[str] = Counter()
        self.longest_recovery_s = 0.0
        self.slowest_to_recover = ""
        self.longest_without_success_s = 0.0
        """The longest stretch without a cycle that ended well, whatever happened in it: outages do not interrupt it."""
        self._lock = threading.Lock()
        self._file: TextIO = path.open("w")
        self._waiting: list[tuple[str, float]] = []
        self._away: set[str] = set()
        self._last_success = 0.0
        self._all_back_since = self._away_since = self._ticked = self.began
        self.played = 0.0
        """Seconds of the timeline. It stands still while a server takes long to start, or a busy machine would see half
        of it only.
        """

    def begin(self) -> None:
        """The scene is set."""
        self.began = self._ticked = time.monotonic()
        self.played = self._last_success = 0.0

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.began

    def note(self, what: str, **facts: object) -> None:
        """Writes one line."""
        with self._lock:
            self._note(what, facts)

    def killed(self, seat: int, moment: str) -> None:
        """A worker was killed."""
        with self._lock:
            self.kills[moment] += 1
            self._disrupted(f"kill ({moment})", {"seat": seat})

    def frozen(self, seat: int, moment: str, facts: dict[str, object]) -> None:
        """A worker was stopped."""
        with self._lock:
            self.freezes[moment] += 1
            self._disrupted(f"freeze ({moment})", {"seat": seat, **facts})

    def cut_off(self) -> None:
        """The session that held the relay's lock was ended."""
        with self._lock:
            self.cuts += 1
            self._disrupted("cut", {})

    def went_away(self, server: str, how: str) -> None:
        """A server was ended."""
        with self._lock:
            if not self._away:
                self._away_since = time.monotonic()
            self._away.add(server)
            self._note(f"{server} {how}", {})

    def tick(self) -> None:
        """Moves ``played`` on by the time since the last call."""
        with self._lock:
            now = time.monotonic()
            if not self._away or now - self._away_since < _OUTAGE_SECONDS:
                self.played += now - self._ticked
            self._ticked = now

    @property
    def seconds_in_order(self) -> float:
        """How long all servers have been there; 0 while one is away."""
        with self._lock:
            return 0.0 if self._away else time.monotonic() - self._all_back_since

    def back_again(self, server: str, how: str) -> None:
        """A server that was ended answers again. Nothing could recover before: what waits for a recovery counts from
        now.
        """
        with self._lock:
            self.restarts[f"{server} {how}"] += 1
            self._away.discard(server)
            self._all_back_since = time.monotonic()
            self._waiting = [(name, self.now) for name, _ in self._waiting]
            self._disrupted(f"{server} back", {"how": how})

    def cycle_ended(self, seat: int, outcome: str, told: str) -> None:
        """A worker reports a cycle: ``ok``, or the class of what it ended with; ``told`` is the error's text or the
        counts.
        """
        with self._lock:
            self.cycles[outcome] += 1
            if outcome == "ok":
                self.longest_without_success_s = max(self.longest_without_success_s, self.now - self._last_success)
                self._last_success = self.now
                for name, since in self._waiting:
                    if self.now - since > self.longest_recovery_s:
                        self.longest_recovery_s, self.slowest_to_recover = self.now - since, name
                self._waiting.clear()
            elif outcome not in EXPECTED_ERRORS:
                self.unexpected[f"{outcome}: {told}"] += 1
            self._note("cycle", {"seat": seat, "outcome": outcome, "told": told})

    def died(self, seat: int, exit_code: int | None) -> None:
        """A worker ended though nobody killed it."""
        with self._lock:
            self.unexpected[f"worker ended by itself, exit code {exit_code}"] += 1
            self._note("died", {"seat": seat, "exit_code": exit_code})

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._file.close()

    def _disrupted(self, name: str, facts: dict[str, object]) -> None:
        self._waiting.append((name, self.now))
        self._note(name, facts)

    def _note(self, what: str, facts: dict[str, object]) -> None:
        self._file.write(json.dumps({"t": round(self.now, 4), "what": what, **facts}, default=str) + "\n")
