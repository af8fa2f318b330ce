"""Environment variables: read when they are needed, in one way wherever a setting comes from.

What belongs here: reading, and refusing what no setting can hold. What does not: what a value must look like; the
settings of each room check that.
"""

import os
from collections.abc import Mapping

from sla_pipeline.errors import ConfigurationError

__all__ = ["variable"]

_QUOTES = ("'", '"')
# white space that JSON allows between its parts
_LAYOUT = str.maketrans("", "", "\t\n\r")


def variable(name: str, environment: Mapping[str, str] | None = None, *, several_lines: bool = False) -> str:
    """The variable's text without the white space around it; empty when it is not set.

    A secret that is mounted as a file often ends in a line break; it is no part of the value. Raises
    ``ConfigurationError``, which names the variable and never repeats the value, when the text holds a character that
    cannot be printed or stands in quotation marks. ``several_lines`` allows line breaks and tabs, for a value that is
    JSON.
    """
    text = (os.environ if environment is None else environment).get(name, "").strip()
    checked = text.translate(_LAYOUT) if several_lines else text
    if not checked.isprintable():
        raise ConfigurationError(
            f"{name} holds {_fault_of(checked)}; write the value as plain text{'' if several_lines else ' on one line'}"
        )
    if len(text) > 1 and text[0] == text[-1] and text[0] in _QUOTES:
        raise ConfigurationError(
            f"{name} stands in quotation marks ({text[0]}), which are part of its value; write the value without them"
        )
    return text


def _fault_of(text: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in text):
        return "bytes that are not UTF-8"
    if "\n" in text or "\r" in text:
        return "a line break"
    return "a control character, or another one that cannot be printed"
