"""Options that several commands have."""

from typing import Annotated

import typer

__all__ = ["AsJson"]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
