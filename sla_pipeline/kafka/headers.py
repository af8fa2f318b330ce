"""Headers of a received message, read in the one way that survives a name that is not UTF-8, and their sequence."""

import re
from collections.abc import Mapping
from operator import methodcaller
from typing import cast

from confluent_kafka import Message

__all__ = ["headers_of", "sequence_in"]

# Form of every sequence of the outbox: a Postgres bigint from 1, without leading zeros.
_SEQUENCE = re.compile(rb"[1-9][0-9]{0,17}")

# confluent-kafka 2.16 returns such headers with a null pointer in place of the name, and sets an error that only a
# checked call raises. `message.headers()` is not checked once Python 3.11 has specialized it after some runs; reading
# the name then crashes the process.
_checked_headers = methodcaller("headers")


def headers_of(message: Message) -> dict[str, bytes | None]:
    """Return a message's headers; none where a name is not UTF-8, which this package never writes.

    The last of several with the same name counts.
    """
    try:
        return dict(cast("list[tuple[str, bytes | None]]", _checked_headers(message) or ()))
    except (SystemError, UnicodeDecodeError):
        # The next call would return the null pointer without the error.
        message.set_headers([])
        return {}


def sequence_in(headers: Mapping[str, bytes | None]) -> int | None:
    """Return the sequence in the header ``outbox-seq``; None without one that the outbox could have assigned."""
    text = headers.get("outbox-seq") or b""
    return int(text) if _SEQUENCE.fullmatch(text) else None
