"""Heartbeat: one call to a URL after each cycle, so that a service elsewhere notices when cycles stop.

The protocol is that of healthchecks.io: a plain GET of the URL after a success, and of the URL with ``/fail`` after a
failure.
"""

import logging
import urllib.request
from functools import partial
from urllib.parse import urlsplit

from sla_pipeline.environment import variable
from sla_pipeline.errors import ConfigurationError
from sla_pipeline.time_limit import call_within

__all__ = ["HEARTBEAT_URL", "send_heartbeat"]

log = logging.getLogger(__name__)

HEARTBEAT_URL = "SLA_HEARTBEAT_URL"

# Bounds what a cycle waits for the service, name lookup included; a healthy one answers in a tenth of it.
_SECONDS = 1.0


def send_heartbeat(*, success: bool) -> None:
    """Call the URL of ``SLA_HEARTBEAT_URL``, if it is set. Never raises, and takes a second at most.

    The URL is a secret: no log line repeats it.
    """
    try:
        url = _url()
        if url and not success:
            parts = urlsplit(url)
            url = parts._replace(path=f"{parts.path.rstrip('/')}/fail").geturl()
        if url:
            # the library's own timeout does not bound a name lookup
            call_within(_SECONDS, partial(_get, url))
    except ConfigurationError as error:
        log.warning("heartbeat not sent", extra={"error": str(error)})
    except Exception as error:  # noqa: BLE001  whatever fails there, the cycle has ended
        log.warning("heartbeat not sent", extra={"error": type(error).__name__})


def _url() -> str:
    url = variable(HEARTBEAT_URL)
    try:
        is_http = not url or (urlsplit(url).scheme in {"http", "https"} and bool(urlsplit(url).hostname))
    except ValueError:
        is_http = False
    if not is_http:
        raise ConfigurationError(f"{HEARTBEAT_URL} is not a URL; write https://HOST/PATH")
    return url


def _get(url: str) -> None:
    with urllib.request.urlopen(url, timeout=_SECONDS):  # noqa: S310  http and https only: `_url`
        pass
