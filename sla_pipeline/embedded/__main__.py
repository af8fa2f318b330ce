"""``python -m sla_pipeline.embedded``: prepares the broker's cache now, so that nothing that is timed has to wait for it."""

import logging
import sys

from sla_pipeline.embedded.supervision import ServiceError
from sla_pipeline.embedded.warm_up import warm_up

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        warm_up()
    except ServiceError as error:
        sys.exit(str(error))
