"""Capture of all log records, of every library, in the deployment's JSON format and in full."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from pythonjsonlogger.json import JsonFormatter

__all__ = ["everything_logged"]


class _RecordCollector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        # The JSON omits fields that the formatter does not know; the record's own fields are complete.
        self.lines += [self.format(record), str(vars(record))]


@contextmanager
def everything_logged() -> Iterator[list[str]]:
    """Yield the lines: each record as JSON with its traceback, and its fields as Python prints them."""
    collector = _RecordCollector()
    # Once configured, the package's log does not reach the root logger.
    loggers = [logging.getLogger(), logging.getLogger("sla_pipeline")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(collector)
        logger.setLevel(logging.DEBUG)
    try:
        yield collector.lines
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(collector)
            logger.setLevel(level)
