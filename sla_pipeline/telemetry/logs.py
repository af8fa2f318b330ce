"""Log lines as JSON objects on standard error, one a line (SPEC 9.1).

What belongs here: the form. What does not: which lines there are; each is written where the thing happens, its values
in ``extra``, and none holds more of a ticket than id, number and kind (SPEC 4.4).
"""

import logging
import sys
import time

from pythonjsonlogger.json import JsonFormatter

__all__ = ["configure_logging"]

_ROOT = "sla_pipeline"


def configure_logging(level: int = logging.INFO) -> None:
    """Send this package's log to standard error as JSON.

    A second call changes the level only; other packages' logs are left alone.
    """
    logger = logging.getLogger(_ROOT)
    logger.setLevel(level)
    if any(isinstance(handler.formatter, JsonFormatter) for handler in logger.handlers):
        return
    handler = logging.StreamHandler(sys.stderr)
    formatter = JsonFormatter(
        "{asctime}{levelname}{name}{message}",
        style="{",
        rename_fields={"asctime": "at", "levelname": "level", "name": "logger"},
        defaults={"service": "ticket-sla-monitor"},
    )
    formatter.default_time_format = "%Y-%m-%dT%H:%M:%S"
    formatter.default_msec_format = "%s.%03dZ"
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logger.addHandler(handler)
    # the root logger of a host process (Dagster's) would print each line a second time
    logger.propagate = False
