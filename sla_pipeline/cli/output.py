"""Printing of the commands: results on standard output, progress and errors on standard error.

Texts from outside (a ticket's number, a server's text) are printed as they are: no markup, no emoji.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from sla_pipeline.quoting import named

__all__ = ["cell", "err", "out", "print_json", "progress"]

# A pipe or a file has no width; an id folded into two lines cannot be searched for.
_UNFOLDED_WIDTH = 240

out = Console(
    highlight=False, soft_wrap=True, markup=False, emoji=False, width=None if sys.stdout.isatty() else _UNFOLDED_WIDTH
)
err = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)


def cell(text: str | None) -> str:
    """Return a text of the support service for a table cell: printable, and distinct from a missing one."""
    return "(none)" if text is None else named(text)


def print_json(value: object) -> None:
    """Print ``value`` as JSON in ASCII: JSON does not escape control characters beyond ASCII, which move a cursor."""
    out.print_json(json.dumps(value, default=str), ensure_ascii=True)


class _Advance:
    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar, self._task = bar, task

    def __call__(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)


@contextmanager
def progress(what: str) -> Iterator[_Advance]:
    """Show a progress bar on standard error, apart from the results."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # a bar that is not seen would still print an empty line
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        yield _Advance(bar, bar.add_task(what, total=None))
