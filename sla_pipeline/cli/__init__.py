"""The command line, ``sla-pipeline``: for on-call, for cron, for the demo. One module per group of commands.

Each command is a few lines around a function of another room. Options, printing and exit codes belong here; the work
does not.
"""

from sla_pipeline.cli.main import app, main

__all__ = ["app", "main"]
