"""Signals during a command: a request to stop, or an interruption."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["interrupted_by_any_signal", "stop_requests"]


@contextmanager
def stop_requests() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and Ctrl-C set; a second signal interrupts at once."""
    stop = threading.Event()

    def request_stop(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    with _handlers(request_stop, signal.SIGTERM, signal.SIGINT):
        yield stop


@contextmanager
def interrupted_by_any_signal() -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` on SIGINT, SIGTERM and SIGHUP."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # SIGINT too: shells start background jobs with it ignored
    with _handlers(interrupt, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def _handlers(handler: "signal._HANDLER", *numbers: signal.Signals) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
