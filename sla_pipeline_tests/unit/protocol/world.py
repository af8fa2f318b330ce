"""The world of the protocol's model at one moment, and what must be true of it at every moment.

What belongs here: what Postgres, Kafka and two publishers hold, and the properties. What does not: how one world
becomes another (``model.py``).
"""

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
    """A breach record, or the progress record that names it. A ticket marked again after a restore is another row: its
    ``era`` differs.
    """

    seq: int
    ticket: str
    era: int

    def __str__(self) -> str:
        return f"{self.seq}={self.ticket}{chr(39) * self.era}" if self.ticket else "0" if self.seq == 0 else "no record"


def listed(rows: tuple[Row, ...]) -> str:
    """Rows as a history tells them: ``1=a 2=b'`` is ticket a's row with sequence 1, and ticket b's, marked after one
    restore.
    """
    return " ".join(map(str, rows)) or "none"


ZERO = Row(0, "", 0)
"""What the progress topic holds when it is created."""
NO_RECORD = Row(-1, "", 0)
"""What a publisher remembers of an empty progress topic."""


class Transaction(NamedTuple):
    """What the broker holds of the open Kafka transaction."""

    rows: tuple[Row, ...]
    progress: Row | None


class Publisher(NamedTuple):
    """One process: the last step it has ended, and what it remembers. ``era`` tells the Postgres that its session is
    with.
    """

    step: str = "idle"
    era: int = 0
    epoch: int = 0
    published_seq: int = 0
    last_seq: int = 0
    position: Row = ZERO
    batch: tuple[Row, ...] = ()
    given_up_seq: int = 0
    """Up to here goes the hanging transaction that it has aborted itself."""


IDLE = Publisher()


class Repair(NamedTuple):
    """A recovery under way: what it found, and the progress record that it will write, once Postgres is mended."""

    era: int
    epoch: int
    compared: bool = False
    common_seq: int = 0
    lost: tuple[Row, ...] = ()
    position: int = 0
    target: Row | None = None
    missing: tuple[Row, ...] = ()
    """Rows to be published again, once Postgres is mended; then no progress record is written by itself."""
    seen: tuple[int, tuple[Row, ...]] = (0, ())
    """``World.committed_so_far`` when it read the progress, before it read the topic, or after its own last
    transaction.
    """
    sending: bool = False


class World(NamedTuple):
    """Everything at one moment."""

    publishers: tuple[Publisher, Publisher] = (IDLE, IDLE)
    rows: tuple[Row, ...] = ()
    published_seq: int = 0
    era: int = 0
    """How often Postgres was restored."""
    epoch: int = 0
    transaction: Transaction | None = None
    hanging: Transaction | None = None
    """A transaction whose end markers the broker dropped: no reader gets past its records, and the next markers decide
    over them.
    """
    late_commit: bool = False
    """A request to commit is still under way. One of an older epoch is refused, so a new epoch clears this."""
    progress: tuple[Row, ...] = (ZERO,)
    """The committed records of the progress topic; only the newest, unless the surroundings can bring an older one
    back.
    """
    visible: tuple[Row, ...] = ()
    """The events that a read_committed consumer has seen."""
    expired_seq: int = 0
    """Up to here the event topic has forgotten them."""
    dropped_count: int = 0
    """So many of the first of them went with an event topic that was deleted."""
    deletion_count: int = 0
    """How often it was deleted, and made anew."""
    harm_count: int = 0
    """How often the progress topic was harmed."""
    passed: Row | None = None
    """A row that was taken for published though it is not visible."""
    repair: Repair | None = None
    frozen: Repair | None = None
    """A recovery that stands still while another one runs; it has not noticed that the lock is lost."""
    refusal: str | None = None
    """Why a publisher has just failed closed."""

    @property
    def topic(self) -> tuple[Row, ...]:
        """The events that are on the topic now."""
        return tuple(row for row in self.visible[self.dropped_count :] if row.seq > self.expired_seq)

    @property
    def committed_so_far(self) -> tuple[int, tuple[Row, ...]]:
        """What differs once anybody has committed anything."""
        return len(self.visible), self.progress[-1:]

    def with_publisher(self, index: int, publisher: Publisher, **changes: Any) -> "World":
        """The same world with another state of one publisher, and other ``changes``."""
        return self._replace(
            publishers=(publisher, self.publishers[1]) if index == 0 else (self.publishers[0], publisher), **changes
        )

    def fenced(self) -> "World":
        """After a new epoch has begun: what was open is aborted, and what hangs along with it."""
        hanging = None if self.transaction else self.hanging
        return self._replace(epoch=self.epoch + 1, transaction=None, hanging=hanging, late_commit=False)

    def committed(self) -> "World":
        """After the open transaction, if there is one, has been committed, and what hangs along with it."""
        if self.transaction is None:
            return self
        ended = [each for each in (self.hanging, self.transaction) if each]
        visible = (*self.visible, *(row for each in ended for row in each.rows))
        progress = (*self.progress, *(each.progress for each in ended if each.progress))
        return self._replace(transaction=None, hanging=None, visible=visible, progress=progress)

    def taken_for_published(self, seq: int) -> "World":
        """After somebody took all rows up to ``seq`` for published; keeps in mind one for which that is not true."""
        passed = next((row for row in self.rows[:seq] if row not in self.visible), None)
        return self._replace(passed=passed) if passed else self


def agree(world: World) -> bool:
    """Whether the progress record can be true of this Postgres: its row is there as it was published, and
    ``published_seq`` not ahead.
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
"""A row is passed over when a publisher's position, or ``published_seq``, is beyond it in the present Postgres and no
event tells it.
"""
