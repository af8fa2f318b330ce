"""State of the protocol's model: Postgres, Kafka and two publishers at one moment, and the properties of each state."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

__all__ = [
    "IDLE",
    "NO_RECORD",
    "PROPERTIES",
    "ZERO",
    "Publisher",
    "Repair",
    "Row",
    "Transaction",
    "World",
    "agree",
    "listed",
]


class Row(NamedTuple):
    """A breach record, or the progress record that names it.

    A ticket marked again after a restore is another row: its ``era`` differs.
    """

    seq: int
    ticket: str
    era: int

    def __str__(self) -> str:
        return f"{self.seq}={self.ticket}{chr(39) * self.era}" if self.ticket else "0" if self.seq == 0 else "no record"


def listed(rows: tuple[Row, ...]) -> str:
    """Return rows as histories show them.

    ``1=a 2=b'`` is ticket a's row with sequence 1, and ticket b's with 2, marked after one restore.
    """
    return " ".join(map(str, rows)) or "none"


ZERO = Row(0, "", 0)
"""Record of a new progress topic."""
NO_RECORD = Row(-1, "", 0)
"""Position that a publisher reads from an empty progress topic."""


class Transaction(NamedTuple):
    """Open Kafka transaction on the broker."""

    rows: tuple[Row, ...]
    progress: Row | None


class Publisher(NamedTuple):
    """One process: its last step and its memory. ``era`` identifies the Postgres of its session."""

    step: str = "idle"
    era: int = 0
    epoch: int = 0
    published_seq: int = 0
    last_seq: int = 0
    position: Row = ZERO
    batch: tuple[Row, ...] = ()
    given_up_seq: int = 0
    """Last sequence of the hanging transaction that it has aborted."""


IDLE = Publisher()


class Repair(NamedTuple):
    """A running recovery: its findings, and the progress record that it will write after the repair of Postgres."""

    era: int
    epoch: int
    compared: bool = False
    common_seq: int = 0
    lost: tuple[Row, ...] = ()
    position: int = 0
    target: Row | None = None
    missing: tuple[Row, ...] = ()
    """Rows to publish again after the repair of Postgres; then no separate progress record is written."""
    seen: tuple[int, tuple[Row, ...]] = (0, ())
    """``World.committed_so_far`` at its read of the progress, before the topic, or after its own last transaction."""
    sending: bool = False


class World(NamedTuple):
    """State of everything at one moment."""

    publishers: tuple[Publisher, Publisher] = (IDLE, IDLE)
    rows: tuple[Row, ...] = ()
    published_seq: int = 0
    era: int = 0
    """Number of restores of Postgres."""
    epoch: int = 0
    transaction: Transaction | None = None
    hanging: Transaction | None = None
    """A transaction whose end markers the broker dropped: it blocks readers until the next markers end it."""
    late_commit: bool = False
    """A request to commit is still in flight. One of an older epoch is refused, so a new epoch clears this."""
    progress: tuple[Row, ...] = (ZERO,)
    """Committed records of the progress topic; only the newest, unless a disaster can bring an older one back."""
    visible: tuple[Row, ...] = ()
    """Events that a read_committed consumer has read."""
    expired_seq: int = 0
    """Last sequence whose event has expired."""
    dropped_count: int = 0
    """Number of the first visible events that were lost with a deleted event topic."""
    deletion_count: int = 0
    """Number of its deletions and re-creations."""
    harm_count: int = 0
    """Number of losses of the progress topic, or of a record of it."""
    passed: Row | None = None
    """A row that counts as published though its event is not visible."""
    repair: Repair | None = None
    frozen: Repair | None = None
    """A paused recovery while another one runs; it has not detected the loss of the lock."""
    refusal: str | None = None
    """Reason for which a publisher has just failed closed."""

    @property
    def topic(self) -> tuple[Row, ...]:
        """Events on the topic now."""
        return tuple(row for row in self.visible[self.dropped_count :] if row.seq > self.expired_seq)

    @property
    def committed_so_far(self) -> tuple[int, tuple[Row, ...]]:
        """Value that every commit changes."""
        return len(self.visible), self.progress[-1:]

    def with_publisher(self, index: int, publisher: Publisher, **changes: Any) -> "World":
        """Return the same world with another state of one publisher, and other ``changes``."""
        return self._replace(
            publishers=(publisher, self.publishers[1]) if index == 0 else (self.publishers[0], publisher), **changes
        )

    def fenced(self) -> "World":
        """Return the world after a new epoch: the open transaction is aborted, and a hanging one with it."""
        hanging = None if self.transaction else self.hanging
        return self._replace(epoch=self.epoch + 1, transaction=None, hanging=hanging, late_commit=False)

    def committed(self) -> "World":
        """Return the world after the commit of the open transaction, if any, and of a hanging one with it."""
        if self.transaction is None:
            return self
        ended = [each for each in (self.hanging, self.transaction) if each]
        visible = (*self.visible, *(row for each in ended for row in each.rows))
        progress = (*self.progress, *(each.progress for each in ended if each.progress))
        return self._replace(transaction=None, hanging=None, visible=visible, progress=progress)

    def taken_for_published(self, seq: int) -> "World":
        """Return the world after all rows up to ``seq`` were counted as published; keep one that is not visible."""
        passed = next((row for row in self.rows[:seq] if row not in self.visible), None)
        return self._replace(passed=passed) if passed else self


def agree(world: World) -> bool:
    """Return whether Postgres agrees with the progress record.

    The record's row exists as it was published, and ``published_seq`` is not ahead.
    """
    if not world.progress:
        return False
    position = world.progress[-1]
    return world.published_seq <= position.seq and (
        position.seq == 0 or world.rows[position.seq - 1 : position.seq] == (position,)
    )


PROPERTIES: Mapping[str, Callable[[World], bool]] = {
    "no ticket has two events": lambda world: len({row.ticket for row in world.visible}) == len(world.visible),
    "no row is passed over": lambda world: world.passed is None,
    "events come in the order of the rows": lambda world: (
        [row.seq for row in world.visible] == sorted(row.seq for row in world.visible)
    ),
    "no false alarm": lambda world: bool(world.era or world.harm_count) or world.refusal is None,
}
"""Properties of every state.

A row is passed over when a publisher's position, or ``published_seq``, is beyond it in the present Postgres and it has
no event.
"""
