"""User and folders for PostgreSQL when this process is root, as which PostgreSQL refuses to run.

For every other user all of it is a no-op.
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

from sla_pipeline.embedded.errors import ServiceError
from sla_pipeline.embedded.folders import cause
from sla_pipeline.embedded.supervision import User

__all__ = ["reachable_copy", "reachable_folder", "unprivileged_user"]

# Every user can enter this folder on Linux and on macOS, and a reboot does not empty it.
_OPEN_TO_ALL = Path("/var/tmp")  # noqa: S108 - a folder there that another user made is refused


def unprivileged_user() -> User | None:
    """Return the user to run a server as: ``nobody`` when this process is root, otherwise None, its own user.

    Raises ``ServiceError`` when the machine has no user ``nobody``.
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
    """Create ``wanted``, 0700 and owned by ``user``, and return it.

    When ``user`` cannot reach it (a checkout below /root), the folder is created below /var/tmp. Raises
    ``ServiceError`` when that one was made by another user or cannot be created.
    """
    wanted.parent.mkdir(parents=True, exist_ok=True)
    if user is None:
        wanted.mkdir(mode=0o700, exist_ok=True)
        return wanted
    if _can_enter(wanted.parent, user):
        return _owned_folder(wanted, user)
    elsewhere = _OPEN_TO_ALL / f"sla-pipeline-{hashlib.sha256(os.fsencode(wanted.absolute())).hexdigest()[:16]}"
    with _usable_for_nobody(elsewhere):
        return _owned_folder(elsewhere, user)


def _owned_folder(folder: Path, user: User) -> Path:
    _make_private(folder, owners=(0, user.uid))
    os.chown(folder, user.uid, user.gid, follow_symlinks=False)
    return folder


@contextlib.contextmanager
def _usable_for_nobody(place: Path) -> Iterator[None]:
    """Turn an ``OSError`` into a ``ServiceError`` of one line that names ``place``."""
    try:
        yield
    except OSError as error:
        raise ServiceError(
            f"PostgreSQL does not run as root, and {place}, its folder for user nobody, cannot be used: "
            f"{cause(error, place)}; make room for it below {_OPEN_TO_ALL}, or run as another user"
        ) from error


def reachable_copy(folders: Sequence[Path], name: str, user: User | None) -> list[Path]:
    """Return ``folders``, all of one parent, if ``user`` can enter them; otherwise their copies, side by side.

    The copies are made once for all runs; ``name`` identifies their contents, version included. Raises ``ServiceError``
    when the folder of the copies was made by another user or cannot be written.
    """
    if user is None or all(_can_enter(folder, user) for folder in folders):
        return list(folders)
    place = _OPEN_TO_ALL / f"sla-pipeline-{name}"
    copy = place / "copy"
    with _usable_for_nobody(place):
        _make_private(place, owners=(0,))
        # The copy appears complete, by a rename, so it is read without a lock.
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
    tried = subprocess.run(
        ["/usr/bin/env", "test", "-x", folder], user=user.uid, group=user.gid, extra_groups=[], cwd="/", check=False
    )
    return tried.returncode == 0


def _make_private(folder: Path, owners: Sequence[int]) -> None:
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if folder.is_symlink() or folder.stat().st_uid not in owners:
        raise ServiceError(f"{folder} was made by someone else; remove it")
