"""A loader process: it decodes image files into memory that it shares with a rank.
`hpc_amp.data.loaders` starts it.

It is a separate program, not a fork of the rank, because a fork of a process with threads may hang
for ever (python/cpython#112275). It does not import torch, so it starts at once.
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
"""Signals that ranks survive. Schedulers and terminals send signals to all processes of a job. If a
loader ended, the rank could not reach its checkpoint."""


def main(parent: int, connection: int, memory: int) -> None:
    """Answer requests until the rank closes the connection.

    `parent`: the process number of the rank. The loader ends with it.
    `connection`, `memory`: file descriptors of a connection and of shared memory.

    The answer is None if the request is done. Otherwise, it is a tuple: whether the error is for
    the user, and its message or traceback.
    """
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    # The kernel ends this process with the rank, even if it hangs. If the rank has ended already,
    # the kernel does not notice.
    end_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        return
    requests, pixels = Connection(connection), mmap.mmap(memory, 0)
    with contextlib.suppress(EOFError, OSError):  # the rank has ended, maybe during a request
        while True:
            requests.send(_answer(requests.recv(), pixels))


def _answer(request: PictureRequest, memory: mmap.mmap) -> tuple[bool, str] | None:
    try:
        decode(request, memory)
    except DataError as error:
        return True, str(error)
    except Exception:  # the rank raises it
        return False, traceback.format_exc()
    return None
