"""Free TCP ports of 127.0.0.1."""

import contextlib
import socket
from collections.abc import Iterable
from random import SystemRandom

from sla_pipeline.embedded.errors import ServiceError

__all__ = ["free_ports", "listens"]

# These lie below the range from which Linux (32768..) and macOS (49152..) take the ports of outgoing connections. A
# port of that range may go to any client while the server is down for a restart, and a client that keeps connecting to
# it can even connect to itself.
_CANDIDATES = range(15_000, 30_000)


def free_ports(count: int, candidates: Iterable[int] = _CANDIDATES) -> list[int]:
    """Return ``count`` different ports that nothing listens on, chosen at random among ``candidates``.

    They are free when this returns, but not reserved. Raises ``ServiceError`` when there are not enough.
    """
    shuffled = list(candidates)
    SystemRandom().shuffle(shuffled)
    found: list[int] = []
    with contextlib.ExitStack() as held:
        for port in shuffled:
            if len(found) == count:
                break
            probe = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
    if len(found) < count:
        raise ServiceError(
            f"{count} free ports of 127.0.0.1 are needed, {len(found)} were found among {len(shuffled)}; stop "
            "something that listens"
        )
    return found


def listens(port: int) -> bool:
    """Return whether something accepts connections on this port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
