"""One command at a time submits the runs of a study."""

from __future__ import annotations

import errno
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from hpc_amp.errors import UsageError
from hpc_amp.study.folder import Study


@contextmanager
def exclusive(study: Study) -> Iterator[None]:
    """Hold the study for this process; the kernel lets it go however the process ends. Raises
    UsageError where another one holds it, also on another machine if the file system can tell."""
    try:
        held = (study.folder / "study.json").open("r+b")  # NFS locks only what can be written
    except OSError as error:
        raise UsageError(f"{study.folder} cannot be written: {error.strerror}") from None
    with held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another command is submitting runs of {study.folder}",
                hint="wait for it, or end it with Ctrl-C",
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
                raise
            # A file system without locks: then it is the user's to start one command at a time.
        yield
