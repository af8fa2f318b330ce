"""Drop of root's rights: root may write everywhere, so a test of a read-only folder would prove nothing."""

import contextlib
import os
import pwd
from collections.abc import Iterator


@contextlib.contextmanager
def without_rights() -> Iterator[None]:
    """Run the block, and processes started in it, as nobody when the user is root; otherwise change nothing."""
    if os.geteuid() != 0:
        yield
        return
    nobody = pwd.getpwnam("nobody").pw_uid
    # The real id changes too: with a different effective id the loader ignores library paths. The saved id stays root
    # for the way back.
    os.setresuid(nobody, nobody, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)
