"""Quote untrusted values for messages: one line, bounded, no control characters.

Quoting does not make a value public: secrets and personal data must not reach a message at all.
"""

import re

__all__ = ["in_markdown", "named", "quoted"]

# Bounds one value in a message: a person reads the message, and the journal and the log keep it.
_LENGTH = 100
# CommonMark allows a backslash before each of ASCII's punctuation characters.
_PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]")


def quoted(value: object) -> str:
    """Return the value's ``repr``, cut off after 100 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print a number of more than 4300 digits
        return "a number of thousands of digits"
    return text if len(text) <= _LENGTH else f"{text[:_LENGTH]}..."


def named(name: str, *, length: int = _LENGTH) -> str:
    """Return a name, such as a ticket's number or a host, unchanged when it is visible, short and printable.

    Return ``quoted(name)`` for any other: an empty, blank or long name, or one with control characters.
    """
    return name if name.strip() and len(name) <= length and name.isprintable() else quoted(name)


def in_markdown(text: str) -> str:
    """Escape a printable text for Dagster's pages, which render Markdown.

    Every character that could start a link, a tag or a table column gets a backslash.
    """
    return _PUNCTUATION.sub(r"\\\g<0>", text)
