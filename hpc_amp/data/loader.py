"""A loader process, which decodes image files into memory that it shares with a rank.
`hpc_amp.data.loaders` starts it.

It is a program of its own and no fork of the rank: a fork beside threads may stand still for ever
(python/cpython#112275). Nothing here imports torch, so it starts at once.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import traceback
from multiprocessing.connection import Connection

from hpc_amp.data.errors import DataError
from hpc_amp.data.pictures import PictureRequest, decode
from hpc_amp.distributed.ending import end_with_parent

IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""What ranks live through. Schedulers and terminals signal all processes of a job: a loader that
died would take the checkpoint, which the rank is about to write, with it."""


def main(parent: int, connection: int, memory: int) -> None:
    """Answer each request with None once it is done, else with whether the error is one for the
    user, and its text. Ends with the rank, whose process number is `parent`; `connection` and
    `memory` are file descriptors."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    # The kernel ends this process with the rank, also where it stands still. That it does not do
    # for a rank that is gone already.
    end_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        return
    requests, pixels = Connection(connection), mmap.mmap(memory, 0)
    with contextlib.suppress(EOFError, OSError):  # the rank is done, maybe amid a request
        while True:
            requests.send(_answer(requests.recv(), pixels))


def _answer(request: PictureRequest, memory: mmap.mmap) -> tuple[bool, str] | None:
    try:
        decode(request, memory)
    except DataError as error:
        return True, str(error)
    except Exception:  # which the rank raises
        return False, traceback.format_exc()
    return None
