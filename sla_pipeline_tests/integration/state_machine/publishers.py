"""Publishers that die, lose their session, or sleep while another takes over (SPEC 7.2, 8).

What belongs here: one attempt to publish that ends badly. What does not: what must be true of the topic afterwards
(``oracle.py``).
"""

import threading
from collections import Counter

from sla_pipeline.errors import KafkaUnavailable, PostgresUnavailable, PublisherFenced
from sla_pipeline.kafka.relay import Relay
from sla_pipeline_tests.integration.state_machine.world import World, through_outages

__all__ = ["Crashed", "HeldPublisher", "overtake", "publish", "publish_and_die", "publish_with_its_session_cut"]

_PATIENCE_SECONDS = 90.0


class Crashed(BaseException):
    """The process is gone: no ``except Exception`` sees it."""


def publish(world: World, relay: Relay) -> None:
    """Publishes all that waits."""

    def attempt() -> None:
        with world.outbox() as outbox:
            relay.publish(outbox, run_id="publisher")

    through_outages(attempt)


def publish_and_die(world: World, *, step: str, nth: int, transaction_limit: int) -> bool:
    """A publisher that dies at the ``nth`` end of ``step``: its session and its producer go without a word.

    False when it had come to its end before.
    """
    outbox = world.outbox()
    seen: Counter[str] = Counter()

    def on_step(name: str) -> None:
        seen[name] += 1
        if name == step and seen[name] == nth:
            outbox.close()
            raise Crashed

    try:
        # not closed: what a dead process leaves open is not closed either
        Relay(world.kafka, on_step=on_step, transaction_limit=transaction_limit).publish(
            outbox, run_id="publisher that dies"
        )
    except (Crashed, KafkaUnavailable):
        return True
    finally:
        outbox.close()
    return False


def publish_with_its_session_cut(world: World, *, step: str) -> None:
    """A publisher that the server cuts off at ``step``, and which must end in an error."""
    met = False

    def on_step(name: str) -> None:
        nonlocal met
        if name == step and not met:
            met = True
            for pid in world.relay_sessions():
                world.cut(pid)

    with Relay(world.kafka, on_step=on_step) as relay, world.outbox() as outbox:
        try:
            relay.publish(outbox, run_id="publisher that is cut off")
        except PostgresUnavailable:
            assert met
        except KafkaUnavailable:
            pass
        else:
            assert not met, f"a publisher that lost its session at {step} said that all is well"


class HeldPublisher:
    """A publisher in a thread, held at the end of ``step`` until it is let go."""

    def __init__(self, world: World, *, step: str) -> None:
        self.error: BaseException | None = None
        self.is_held = False
        self._world = world
        self._step = step
        self._news = threading.Event()
        self._go = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"publisher held at {step}", daemon=True)
        self._thread.start()
        assert self._news.wait(_PATIENCE_SECONDS), f"the publisher neither came to {step} nor ended"

    def _on_step(self, name: str) -> None:
        if name == self._step and not self.is_held:
            self.is_held = True
            self._news.set()
            assert self._go.wait(_PATIENCE_SECONDS), "nobody let the publisher go"

    def _run(self) -> None:
        try:
            with Relay(self._world.kafka, on_step=self._on_step) as relay, self._world.outbox() as outbox:
                relay.publish(outbox, run_id="publisher that sleeps")
        except BaseException as error:  # noqa: BLE001 - it is looked at by the test
            self.error = error
        finally:
            self._news.set()

    def let_go(self) -> None:
        """Lets it run to its end. May be called again."""
        self._go.set()
        self._thread.join(_PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "the publisher does not end"

    def assert_it_ended_in_an_error(self) -> None:
        """Another has taken over meanwhile: it must say so, in our words, and never that all is well."""
        expected = PostgresUnavailable | PublisherFenced | KafkaUnavailable
        assert isinstance(self.error, expected), f"held at {self._step}, it ended with {self.error!r}"


def overtake(world: World, *, step: str, let_go_at: str | None) -> None:
    """A publisher sleeps at ``step`` and loses its session; another takes over; the first goes on when the second is at
    ``let_go_at``.

    With None, when the second has finished, which it must do well. Otherwise the first may shut out the second, and
    nothing worse.
    """
    sleeper = HeldPublisher(world, step=step)
    try:
        if not sleeper.is_held:
            assert isinstance(sleeper.error, KafkaUnavailable | None)
            return
        for pid in world.relay_sessions():
            world.cut(pid)
        met = False

        def on_step(name: str) -> None:
            nonlocal met
            if name == let_go_at and not met:
                met = True
                sleeper.let_go()

        try:
            with Relay(world.kafka, on_step=on_step) as relay:
                publish(world, relay)
        except PublisherFenced:
            assert met, "nobody disturbed it, yet it was shut out"
        sleeper.let_go()
        sleeper.assert_it_ended_in_an_error()
    finally:
        sleeper.let_go()
