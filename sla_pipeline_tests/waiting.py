"""Polling for a condition of another process, with a deadline and a clear failure."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], *, what: str, seconds: float = 30.0) -> None:
    """Poll ``condition``; fail the test when it stays false."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
        time.sleep(0.02)
