"""Messages about folders that cannot be used: the fault of the disk or of the rights, and the folder's owner."""

import contextlib
import errno
import os
import pwd
from pathlib import Path

__all__ = ["DISK", "FULL", "cause", "is_below"]

# Faults of a disk without room: neither the folder's contents nor its name is wrong.
FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}
# Faults of a disk that cannot be written: the data is not at fault, and removing the folder may not be possible.
DISK = FULL | {errno.EROFS: "the disk is read-only"}


def cause(error: OSError, folder: Path) -> str:
    """Return the reason for ``error`` in one line.

    The line names the path when it is not ``folder`` itself, and the path's owner when the rights are missing.
    """
    reason = DISK.get(error.errno or 0) or error.strerror or str(error)
    if not isinstance(error.filename, (str, bytes)):
        return reason
    place = Path(os.fsdecode(error.filename))
    where = "" if place == folder else f"{place}: "
    return f"{where}{reason}{_owned_by_another(place) if isinstance(error, PermissionError) else ''}"


def is_below(folder: Path, filename: object) -> bool:
    """Return whether an ``OSError``'s file name is ``folder`` or lies in it."""
    return isinstance(filename, (str, bytes)) and Path(os.fsdecode(filename)).is_relative_to(folder)


def _owned_by_another(place: Path) -> str:
    """Return a hint at the usual reason, an earlier run as root; empty when the folder is this user's."""
    for path in (place, *place.parents):
        with contextlib.suppress(OSError):
            owner = path.stat().st_uid
            if owner == os.geteuid():
                return ""
            with contextlib.suppress(KeyError):
                return f" ({path} belongs to {pwd.getpwuid(owner).pw_name})"
            return f" ({path} belongs to user {owner})"
    return ""
