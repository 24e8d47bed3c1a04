"""Locks on files, which also work between nodes if the file system supports them.

NFS and GPFS do, and Lustre if it is mounted with `flock`. The kernel releases a lock when the
process ends, however it ends.
"""

from __future__ import annotations

import errno
import fcntl

_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class UnsupportedLocksError(Exception):
    """The file system has no locks."""


def lock(descriptor: int, *, wait: bool) -> bool:
    """Lock an open file for this process until the file is closed.

    Returns False if another process has the lock and `wait` is false. Raises UnsupportedLocksError
    if the file system has no locks, and OSError if the file cannot be locked for another reason.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            raise UnsupportedLocksError from error
        raise
    return True
