"""Log lines as JSON objects on standard error, one per line (SPEC 9.1).

Each line is logged where its event happens, with the values in ``extra``. None holds more of a ticket than id, number
and kind (SPEC 4.4).
"""

import logging
import sys
import time

from pythonjsonlogger.json import JsonFormatter

__all__ = ["configure_logging"]

_ROOT = "sla_pipeline"


def configure_logging(level: int = logging.INFO) -> None:
    """Send this package's log to standard error as JSON.

    A second call changes the level only; other packages' logs do not change.
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
    # The root logger of a host process, such as Dagster's, would print each line a second time.
    logger.propagate = False
