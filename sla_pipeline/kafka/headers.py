"""Headers of a received message, read in the one way that survives a name that is not UTF-8; the sequence that they
hold.
"""

import re
from collections.abc import Mapping
from operator import methodcaller
from typing import cast

from confluent_kafka import Message

__all__ = ["headers_of", "sequence_in"]

# a whole number of Postgres' bigint, counted from 1, without leading zeros: no other was ever handed out
_SEQUENCE = re.compile(rb"[1-9][0-9]{0,17}")

# confluent-kafka 2.16 returns such headers with a null pointer in the place of the name, beside an error that only a
# checked call raises. `message.headers()` is not checked, once it has run often enough for Python 3.11 to specialize
# it; to touch the name ends the process.
_checked_headers = methodcaller("headers")


def headers_of(message: Message) -> dict[str, bytes | None]:
    """A message's headers; none where a name is not UTF-8, which is none of this package.

    Of several of one name, the last.
    """
    try:
        return dict(cast("list[tuple[str, bytes | None]]", _checked_headers(message) or ()))
    except (SystemError, UnicodeDecodeError):
        # the next call would return the null pointer without the error
        message.set_headers([])
        return {}


def sequence_in(headers: Mapping[str, bytes | None]) -> int | None:
    """The sequence in the header ``outbox-seq``; None without one that the outbox could have handed out."""
    text = headers.get("outbox-seq") or b""
    return int(text) if _SEQUENCE.fullmatch(text) else None
