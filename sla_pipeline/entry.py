"""Entry point of the program ``sla-pipeline``: Ctrl-C while the command line is loading.

Loading takes a second, and longer on a busy machine.
"""

import signal


def main() -> None:
    """Load and run the command line.

    Ctrl-C before it is loaded ends the process at once, without the traceback of an import.
    """
    # Shells start background jobs with SIGINT ignored; such a process continues to ignore it.
    if interruptible := signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from sla_pipeline import cli  # noqa: PLC0415

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()
