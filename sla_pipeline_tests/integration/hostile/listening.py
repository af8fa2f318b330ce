"""Hears everything that is logged, by whomever, and writes it out as the deployment's log does and in full.

What belongs here: catching log records. What does not: what may be in them.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from pythonjsonlogger.json import JsonFormatter

__all__ = ["everything_logged"]


class _Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        # the formatter leaves out nothing but what it does not know: the rest is in the record's own fields
        self.lines += [self.format(record), str(vars(record))]


@contextmanager
def everything_logged() -> Iterator[list[str]]:
    """The lines, each as JSON with its traceback, and each record's fields as Python prints them."""
    listener = _Listener()
    # once configured, the package's log does not reach the root logger
    loggers = [logging.getLogger(), logging.getLogger("sla_pipeline")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(listener)
        logger.setLevel(logging.DEBUG)
    try:
        yield listener.lines
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(listener)
            logger.setLevel(level)
