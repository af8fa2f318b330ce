"""Publishers that die, lose their session, or are paused while another takes over (SPEC 7.2, 8)."""

import threading
import time
from collections import Counter

from sla_pipeline.errors import KafkaUnavailable, PostgresUnavailable, PublisherFenced
from sla_pipeline.kafka.relay import PUBLISH_SECONDS, Relay
from sla_pipeline_tests.integration.state_machine.system_under_test import SystemUnderTest, through_outages

__all__ = ["Crashed", "PausedPublisher", "overtake", "publish", "publish_and_die", "publish_with_its_session_cut"]

_DEADLINE_SECONDS = 90.0


class Crashed(BaseException):
    """End of the process: no ``except Exception`` catches it."""


def publish(system: SystemUnderTest, relay: Relay) -> None:
    """Publish all unpublished records; repeat when a busy machine uses up the time of a publisher."""

    def attempt() -> None:
        out_of_time = True
        while out_of_time:
            began = time.monotonic()
            with system.outbox() as outbox:
                relay.publish(outbox, run_id="publisher")
                out_of_time = _is_out_of_time(began) and outbox.published_seq() < outbox.last_seq()

    through_outages(attempt)


def _is_out_of_time(began: float) -> bool:
    """Return whether a publisher may have ended early, without an error, because its time was nearly up."""
    return time.monotonic() - began > PUBLISH_SECONDS / 2


def publish_and_die(system: SystemUnderTest, *, step: str, nth: int, transaction_limit: int) -> bool:
    """Run a publisher that dies at the ``nth`` end of ``step``, without closing its producer.

    Returns False when it finished before, with all records published.
    """
    began = time.monotonic()
    outbox = system.outbox()
    seen: Counter[str] = Counter()

    def on_step(name: str) -> None:
        seen[name] += 1
        if name == step and seen[name] == nth:
            outbox.close()
            raise Crashed

    try:
        # the relay is not closed: a dead process does not close it either
        Relay(system.kafka, on_step=on_step, transaction_limit=transaction_limit).publish(
            outbox, run_id="publisher that dies"
        )
    except (Crashed, KafkaUnavailable):
        return True
    finally:
        outbox.close()
    return _is_out_of_time(began)


def publish_with_its_session_cut(system: SystemUnderTest, *, step: str) -> None:
    """Run a publisher whose session the server ends at ``step``; it must fail."""
    reached = False

    def on_step(name: str) -> None:
        nonlocal reached
        if name == step and not reached:
            reached = True
            for pid in system.relay_sessions():
                system.cut(pid)

    with Relay(system.kafka, on_step=on_step) as relay, system.outbox() as outbox:
        try:
            relay.publish(outbox, run_id="publisher that is cut off")
        except PostgresUnavailable:
            assert reached
        except KafkaUnavailable:
            pass
        else:
            assert not reached, f"a publisher that lost its session at {step} reported success"


class PausedPublisher:
    """A publisher in a thread, paused at the end of ``step`` until ``resume``."""

    def __init__(self, system: SystemUnderTest, *, step: str) -> None:
        self.error: BaseException | None = None
        self.is_paused = False
        self._system = system
        self._step = step
        self._paused_or_ended = threading.Event()
        self._resumed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"publisher paused at {step}", daemon=True)
        self._thread.start()
        assert self._paused_or_ended.wait(_DEADLINE_SECONDS), f"the publisher neither reached {step} nor ended"

    def _on_step(self, name: str) -> None:
        if name == self._step and not self.is_paused:
            self.is_paused = True
            self._paused_or_ended.set()
            assert self._resumed.wait(_DEADLINE_SECONDS), "the publisher was not resumed"

    def _run(self) -> None:
        try:
            with Relay(self._system.kafka, on_step=self._on_step) as relay, self._system.outbox() as outbox:
                relay.publish(outbox, run_id="publisher that is paused")
        except BaseException as error:  # noqa: BLE001 - checked by the test
            self.error = error
        finally:
            self._paused_or_ended.set()

    def resume(self) -> None:
        """Let it run to its end. May be called repeatedly."""
        self._resumed.set()
        self._thread.join(_DEADLINE_SECONDS)
        assert not self._thread.is_alive(), "the publisher does not end"

    def assert_ended_in_an_error(self) -> None:
        """Check that it failed with an error of the product, since another publisher has taken over."""
        expected = PostgresUnavailable | PublisherFenced | KafkaUnavailable
        assert isinstance(self.error, expected), f"paused at {self._step}, it ended with {self.error!r}"


def overtake(system: SystemUnderTest, *, step: str, resume_at: str | None) -> None:
    """Pause a publisher at ``step``, end its session, and resume it when a second publisher is at ``resume_at``.

    With ``resume_at`` None it resumes after the second one has finished, which must succeed. Otherwise the first may
    fence the second, which then fails.
    """
    paused = PausedPublisher(system, step=step)
    try:
        if not paused.is_paused:
            assert isinstance(paused.error, KafkaUnavailable | None)
            return
        for pid in system.relay_sessions():
            system.cut(pid)
        reached = False

        def on_step(name: str) -> None:
            nonlocal reached
            if name == resume_at and not reached:
                reached = True
                paused.resume()

        try:
            with Relay(system.kafka, on_step=on_step) as relay:
                publish(system, relay)
        except PublisherFenced:
            assert reached, "it was fenced although the first publisher was still paused"
        paused.resume()
        paused.assert_ended_in_an_error()
    finally:
        paused.resume()
