"""The loader processes of a rank. They are started once, for training and evaluation.

They are separate programs (see `hpc_amp.data.loader`), not forks of this process, which has
threads. Requests are sent to them in turn, and are answered in the same order. The pixels are in
memory that all of them share with this process.
"""

from __future__ import annotations

import contextlib
import logging
import math
import mmap
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from hpc_amp.data.errors import DataError, LoaderError
from hpc_amp.data.loader import IGNORED
from hpc_amp.data.pictures import PictureRequest, decode

log = logging.getLogger(__name__)

AHEAD = 4
"""How many batches are decoded, or being decoded, while one is used. All processes share each."""
SILENT_SECONDS = 30.0
"""Seconds that a loader process may take for its part of a batch before the log mentions it."""
_LAST_SECONDS = 5.0
"""Seconds to wait for a process that should end."""

# The arguments are the numbers for `main`, then the search path for modules. `-m` would search the
# working directory first, and PYTHONPATH cannot contain a folder with a colon.
_START = """
import sys
sys.path[:] = sys.argv[4:]
from hpc_amp.data.loader import main
main(*map(int, sys.argv[1:4]))
"""


@dataclass(frozen=True, slots=True)
class Batch:
    """Image files to decode, each with the seed of its random changes. `crop` and `flip`: whether
    they are cropped and mirrored at random."""

    images: list[tuple[str, str]]
    crop: bool = False
    flip: bool = False


class _Process:
    """One loader process, and the connection to it."""

    def __init__(self, memory: int) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        numbers = (os.getpid(), theirs.fileno(), memory)
        # It gets the search path of this process. Python ignores entries that are not strings, so
        # some programs have Path objects there.
        path = [entry for entry in sys.path if isinstance(entry, str)]
        with theirs:
            self.program = subprocess.Popen(
                [sys.executable, *_options(), "-c", _START, *map(str, numbers), *path],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), memory),
            )


class Loaders:
    """Decodes image files to squares.

    `count`: the number of processes; 0 decodes in this process.
    `side`: the side of the squares in pixels.
    `largest`: the number of images in the largest batch.
    `rank`: the rank of this process, for messages.

    Raises LoaderError if processes cannot be started. Iterating raises LoaderError if one has
    ended, and DataError for an image that cannot be read.
    """

    def __init__(self, count: int, side: int, largest: int, rank: int = 0) -> None:
        self.side, self.rank = side, rank
        self._ahead = AHEAD if count else 1
        shape = (self._ahead, largest, side, side, 3)
        try:
            file = _shared_memory(math.prod(shape))
        except OSError as error:
            size = math.prod(shape) / 2**20
            raise LoaderError(f"no memory for {size:,.0f} MiB of images: {error}") from error
        self._processes: list[_Process] = []
        self._finalizer = weakref.finalize(self, _end, self._processes)
        try:
            self._memory = mmap.mmap(file, 0)
            with _signals_blocked():
                for _ in range(count):
                    self._processes.append(_Process(file))
        except OSError as error:
            raise LoaderError(
                f"loader process {len(self._processes) + 1} of {count} cannot be started: {error}"
            ) from error
        finally:
            os.close(file)
        self._slots = torch.frombuffer(self._memory, dtype=torch.uint8).view(shape)
        self._next = 0
        self._unanswered: deque[tuple[_Process, PictureRequest]] = deque()
        self._user: object = None

    def load(self, batches: Iterable[Batch]) -> Iterator[Tensor]:
        """Yield the pixels of each batch, uint8 [N, 3, side, side], while others are decoded.

        A tensor is only valid until the next one is requested. Several passes may alternate.
        """
        coming = iter(batches)
        waiting: deque[Batch] = deque()
        asked = 0  # how many of the waiting batches have been requested, from the first one on
        slot = 0  # the part of the memory for the first one
        while True:
            if self._user is not waiting:
                # Another pass has used the processes: it may have left requests unanswered, and has
                # overwritten the memory of this pass.
                while self._unanswered:
                    self._receive()
                self._user, asked = waiting, 0
            waiting.extend(islice(coming, self._ahead - len(waiting)))
            for batch in list(waiting)[asked:]:
                self._ask(batch, (slot + asked) % self._ahead)
                asked += 1
            if not waiting:
                return
            batch = waiting.popleft()
            self._wait_for(batch)
            yield self._slots[slot, : len(batch.images)].permute(0, 3, 1, 2)
            asked -= 1
            slot = (slot + 1) % self._ahead

    def close(self) -> None:
        """End the processes and free the memory. Without it, this happens when the object is
        deleted."""
        self._finalizer()
        del self._slots, self._memory

    def _parts(self, batch: Batch) -> int:
        return min(len(self._processes), len(batch.images))

    def _ask(self, batch: Batch, slot: int) -> None:
        """Request a batch. Its images are divided evenly among the processes."""
        size = self.side * self.side * 3
        begin = slot * self._slots[0].numel()
        parts = self._parts(batch)
        if parts == 0:
            decode(
                PictureRequest(begin, self.side, batch.crop, batch.flip, batch.images), self._memory
            )
        for part in range(parts):
            first, last = (len(batch.images) * at // parts for at in (part, part + 1))
            images = batch.images[first:last]
            request = PictureRequest(
                begin + first * size, self.side, batch.crop, batch.flip, images
            )
            process = self._processes[self._next]
            self._next = (self._next + 1) % len(self._processes)
            self._unanswered.append((process, request))
            try:
                process.connection.send(request)
            except OSError as error:
                raise self._death(process) from error

    def _wait_for(self, batch: Batch) -> None:
        """Wait until all parts of a batch, the first one that was requested, are decoded."""
        for _ in range(self._parts(batch)):
            answer = self._receive()
            if answer is not None:
                for_user, text = answer
                raise DataError(text) if for_user else RuntimeError(text)

    def _receive(self) -> tuple[bool, str] | None:
        """Wait for the answer to the oldest request."""
        process, request = self._unanswered[0]
        try:
            if not process.connection.poll(SILENT_SECONDS):
                log.warning(
                    "rank %d: loader process %d has been silent for %.0f s. %s: check whether its "
                    "file system responds",
                    *(self.rank, process.program.pid, SILENT_SECONDS, _reading(request)),
                )
            answer: tuple[bool, str] | None = process.connection.recv()
        except (EOFError, OSError) as error:
            raise self._death(process) from error
        self._unanswered.popleft()
        return answer

    def _death(self, process: _Process) -> LoaderError:
        """The error for a process that has closed its connection."""
        try:
            status = process.program.wait(_LAST_SECONDS)
        except subprocess.TimeoutExpired:
            how = "does not answer any more"
        else:
            how = f"has ended with status {status}; its output is in the log"
            if status == -signal.SIGKILL:
                how = "was killed (SIGKILL), most often by the kernel for lack of main memory"
            elif status < 0:
                how = f"was killed by signal {-status} ({signal.Signals(-status).name})"
        request = next(asked for asker, asked in self._unanswered if asker is process)
        return LoaderError(f"loader process {process.program.pid} {how}. {_reading(request)}")


def _options() -> list[str]:
    """The options of this interpreter that restrict what it loads (such as -E, which ignores the
    environment), so that loaders are restricted as well."""
    flags = sys.flags
    given = {"-I": flags.isolated, "-E": flags.ignore_environment, "-s": flags.no_user_site}
    return [option for option, is_set in given.items() if is_set]


def _shared_memory(size: int) -> int:
    """A file descriptor of anonymous memory, so that nothing is left behind. /dev/shm is only used
    without it, because it is small in many containers."""
    try:
        file = os.memfd_create("images")
    except (AttributeError, OSError):  # an old C library, an old kernel, or a sandbox
        with tempfile.TemporaryFile(dir="/dev/shm") as named:
            os.posix_fallocate(named.fileno(), 0, size)  # a full /dev/shm would raise SIGBUS later
            return os.dup(named.fileno())
    os.ftruncate(file, size)
    return file


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Programs that are started in this block inherit blocked signals until they ignore them.
    Signals for this process arrive in another thread, or after the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _reading(request: PictureRequest) -> str:
    paths = [path for path, _ in request.images]
    if len(paths) == 1:
        return f"It was reading {paths[0]}"
    return f"It was reading {len(paths)} images from {paths[0]} to {paths[-1]}"


def _end(processes: list[_Process]) -> None:
    """Kill the processes, which have nothing to lose, and wait for them, except for one that hangs
    in the kernel."""
    for process in processes:
        process.connection.close()
        process.program.kill()
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.program.wait(_LAST_SECONDS)
