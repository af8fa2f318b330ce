"""Environment variables, read in one way wherever a setting comes from.

What belongs here: reading. What does not: what a value must look like; the settings of each room check that.
"""

import os
from collections.abc import Mapping

__all__ = ["variable"]


def variable(name: str, environment: Mapping[str, str] | None = None) -> str:
    """The variable's text without the white space around it; empty when it is not set.

    A secret that is mounted as a file often ends in a line break.
    """
    return (os.environ if environment is None else environment).get(name, "").strip()
