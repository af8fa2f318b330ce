"""Environment variables: read at first use, and refused when no setting can have such a text.

Each setting's own form is checked where the setting is defined, not here.
"""

import os
from collections.abc import Mapping

from sla_pipeline.errors import ConfigurationError

__all__ = ["variable"]

_QUOTES = ("'", '"')
# White space that JSON allows between its parts, beside the space.
_LAYOUT = str.maketrans("", "", "\t\n\r")


def variable(name: str, environment: Mapping[str, str] | None = None, *, several_lines: bool = False) -> str:
    """Return the variable's text without the white space around it; an empty text when it is not set.

    A secret that is mounted as a file often ends in a line break, which is not part of the value. ``several_lines``
    allows line breaks and tabs, for a value that is JSON. Raises ``ConfigurationError`` when the text holds a character
    that cannot be printed, or is enclosed in quotation marks; the error names the variable and never repeats the value.
    """
    text = (os.environ if environment is None else environment).get(name, "").strip()
    checked = text.translate(_LAYOUT) if several_lines else text
    if not checked.isprintable():
        raise ConfigurationError(
            f"{name} holds {_fault_of(checked)}; write the value as plain text{'' if several_lines else ' on one line'}"
        )
    if len(text) > 1 and text[0] == text[-1] and text[0] in _QUOTES:
        raise ConfigurationError(
            f"{name} is enclosed in quotation marks ({text[0]}), which are part of its value; write the value without "
            "them"
        )
    return text


def _fault_of(text: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in text):
        return "bytes that are not UTF-8"
    if "\n" in text or "\r" in text:
        return "a line break"
    return "a control character, or another one that cannot be printed"
