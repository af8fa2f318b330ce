"""``python -m sla_pipeline.embedded``: prepare the broker's cache, so that no timed command has to wait for it."""

import logging
import sys

from sla_pipeline.embedded.warm_up import warm_up
from sla_pipeline.errors import InputError, SlaPipelineError

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        warm_up()
    except KeyboardInterrupt:
        sys.exit(130)
    except SlaPipelineError as error:
        print(f"sla-pipeline: {error}", file=sys.stderr)  # noqa: T201
        # The command line's exit codes: 2 for a wrong value, 3 for a fault that a person must repair.
        sys.exit(2 if isinstance(error, InputError) else 3)
