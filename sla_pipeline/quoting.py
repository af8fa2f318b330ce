"""What came from outside, as a message may repeat it: on one line, bounded, with nothing in it that moves a cursor.

What belongs here: making a value fit for a person's eyes. What does not: deciding whether it may be shown at all.
"""

import re

__all__ = ["in_markdown", "named", "quoted"]

# a message is read by a person, and kept in a journal and a log
_LENGTH = 100
# CommonMark takes a backslash before each of ASCII's punctuation characters
_PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]")


def quoted(value: object) -> str:
    """A refused value as Python writes it, cut off after 100 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print a number of more than 4300 digits
        return "a number of thousands of digits"
    return text if len(text) <= _LENGTH else f"{text[:_LENGTH]}..."


def named(name: str, *, length: int = _LENGTH) -> str:
    """A ticket's number, a host's name: as it is when it can be seen, is short and printable, as every honest one;
    else ``quoted``.
    """
    return name if name.strip() and len(name) <= length and name.isprintable() else quoted(name)


def in_markdown(text: str) -> str:
    """A printable text for Dagster's pages, which render Markdown: every sign that could become a link, a tag or a
    column is escaped.
    """
    return _PUNCTUATION.sub(r"\\\g<0>", text)
