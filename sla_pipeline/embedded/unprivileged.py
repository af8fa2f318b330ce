"""Leaving root, which PostgreSQL refuses to run as.

What belongs here: the user to become, and folders that this user can reach. What does not: the server itself. For
everyone but root all of it is a no-op.
"""

import contextlib
import hashlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import filelock

from sla_pipeline.embedded.folders import cause
from sla_pipeline.embedded.supervision import ServiceError, User

__all__ = ["reachable_copy", "reachable_folder", "unprivileged_user"]

# where both Linux and macOS let everybody through, and keep things over a reboot
_OPEN_TO_ALL = Path("/var/tmp")  # noqa: S108 - what is made there is refused when someone else made it first


def unprivileged_user() -> User | None:
    """The user to run a server as: ``nobody`` when we are root, None (ourselves) otherwise.

    Raises ``ServiceError`` where there is none.
    """
    if os.geteuid() != 0:
        return None
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        raise ServiceError(
            "PostgreSQL does not run as root, and this machine has no user nobody for it; run as another user"
        ) from None
    return User(nobody.pw_uid, nobody.pw_gid)


def reachable_folder(wanted: Path, user: User | None) -> Path:
    """Makes ``wanted``, 0700 and owned by ``user``, and returns it; elsewhere when ``user`` cannot get there (a checkout below /root).

    Raises ``ServiceError`` when the folder elsewhere was made by someone else or cannot be made.
    """
    wanted.parent.mkdir(parents=True, exist_ok=True)
    if user is None:
        wanted.mkdir(mode=0o700, exist_ok=True)
        return wanted
    if _can_enter(wanted.parent, user):
        return _given_to(user, wanted)
    elsewhere = _OPEN_TO_ALL / f"sla-pipeline-{hashlib.sha256(os.fsencode(wanted.absolute())).hexdigest()[:16]}"
    with _usable_for_nobody(elsewhere):
        return _given_to(user, elsewhere)


def _given_to(user: User, folder: Path) -> Path:
    _make_private(folder, owners=(0, user.uid))
    os.chown(folder, user.uid, user.gid, follow_symlinks=False)
    return folder


@contextlib.contextmanager
def _usable_for_nobody(place: Path) -> Iterator[None]:
    """Turn what goes wrong on ``place`` into a ``ServiceError`` of one line."""
    try:
        yield
    except OSError as error:
        raise ServiceError(
            f"PostgreSQL does not run as root, and {place}, its folder for user nobody, cannot be used: "
            f"{cause(error, place)}; make room for it below {_OPEN_TO_ALL}, or run as another user"
        ) from error


def reachable_copy(folders: Sequence[Path], name: str, user: User | None) -> list[Path]:
    """``folders``, all of one parent, if ``user`` can enter them; otherwise a copy of them, side by side, made once for all runs.

    ``name`` says what is in them, version included. Raises ``ServiceError`` when the place of the copy was made by
    someone else or cannot be written.
    """
    if user is None or all(_can_enter(folder, user) for folder in folders):
        return list(folders)
    place = _OPEN_TO_ALL / f"sla-pipeline-{name}"
    copy = place / "copy"
    with _usable_for_nobody(place):
        _make_private(place, owners=(0,))
        # whole or not at all, so it is read without a lock
        if not copy.exists():
            place.chmod(0o755)
            with filelock.FileLock(place / ".lock"):
                if not copy.exists():
                    _copy(folders, copy)
    return [copy / folder.name for folder in folders]


def _copy(folders: Sequence[Path], copy: Path) -> None:
    part = Path(tempfile.mkdtemp(dir=copy.parent))
    part.chmod(0o755)
    for folder in folders:
        shutil.copytree(folder, part / folder.name, symlinks=True)
    part.rename(copy)


def _can_enter(folder: Path, user: User) -> bool:
    asked = subprocess.run(
        ["/usr/bin/env", "test", "-x", folder], user=user.uid, group=user.gid, extra_groups=[], cwd="/", check=False
    )
    return asked.returncode == 0


def _make_private(folder: Path, owners: Sequence[int]) -> None:
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if folder.is_symlink() or folder.stat().st_uid not in owners:
        raise ServiceError(f"{folder} was made by someone else; remove it")
