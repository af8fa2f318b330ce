"""``python -m sla_pipeline.embedded``: fetches the broker's jars now, so that nothing that is timed has to wait for the network."""

import logging
import sys

from sla_pipeline.embedded.jars import fetch_jars
from sla_pipeline.embedded.supervision import ServiceError

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        fetch_jars()
    except ServiceError as error:
        sys.exit(str(error))
