"""Time limit of a call that has none of its own, such as a name lookup."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

__all__ = ["call_within"]

_T = TypeVar("_T")


def call_within(seconds: float, call: Callable[[], _T]) -> _T:
    """Return the result of ``call``, or raise its error. Raises ``TimeoutError`` after ``seconds``.

    A call that is not over by then continues in its thread, a daemon: it does not keep the process alive.
    """
    result: Future[_T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:  # noqa: BLE001  raised in the caller's thread
            result.set_exception(error)

    threading.Thread(target=run, name="time limit", daemon=True).start()
    return result.result(seconds)
