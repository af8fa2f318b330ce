"""What came from outside, as a message may repeat it: on one line, bounded, with nothing in it that moves a cursor.

What belongs here: making a value fit for a person's eyes. What does not: deciding whether it may be shown at all.
"""

__all__ = ["named", "quoted"]

# a message is read by a person, and kept in a journal and a log
_LENGTH = 100


def quoted(value: object) -> str:
    """A refused value as Python writes it, cut off after 100 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print a number of more than 4300 digits
        return "a number of thousands of digits"
    return text if len(text) <= _LENGTH else f"{text[:_LENGTH]}..."


def named(name: str) -> str:
    """A ticket's number, a host's name: as it is when it is short and printable, as every honest one is, and ``quoted`` otherwise."""
    return name if len(name) <= _LENGTH and name.isprintable() else quoted(name)
