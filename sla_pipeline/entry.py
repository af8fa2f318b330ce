"""The program ``sla-pipeline``: what it does while the command line is being loaded, which takes a second and more
on a busy machine.
"""

import signal


def main() -> None:
    """Load and run the command line.

    Ctrl-C before it is loaded ends the process at once, without the traceback of an import.
    """
    # what a script starts with & ignores SIGINT, and goes on doing so
    if interruptible := signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from sla_pipeline import cli  # noqa: PLC0415

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()
