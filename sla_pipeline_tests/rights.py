"""Going on as a user without rights: root may write everywhere, so a test of a folder that cannot be written would
prove nothing.
"""

import contextlib
import os
import pwd
from collections.abc import Iterator


@contextlib.contextmanager
def without_rights() -> Iterator[None]:
    """Root goes on as nobody, with the processes that it starts; for everyone else nothing changes."""
    if os.geteuid() != 0:
        yield
        return
    nobody = pwd.getpwnam("nobody").pw_uid
    # the real one too: what is run by a user other than the real one does not find its libraries. The third is the way
    # back
    os.setresuid(nobody, nobody, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)
