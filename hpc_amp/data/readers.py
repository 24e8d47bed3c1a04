"""The threads of a rank that read samples from files.

Threads are enough: Pillow and torch let other threads run while they decode and scale. Batches of
the next steps are read while one is used.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from hpc_amp.distributed.world import World

log = logging.getLogger(__name__)

AHEAD = 3
"""Batches that are read or being read while one is used."""
SILENT_SECONDS = 30.0
"""Seconds that a batch may take, after it is needed, before the log mentions it."""

Sample = TypeVar("Sample")
Content = TypeVar("Content")


class Readers:
    """Reads samples in `count` threads. With 0, each sample is read when it is needed."""

    def __init__(self, count: int) -> None:
        self._threads: ThreadPoolExecutor | None = None
        if count:
            self._threads = ThreadPoolExecutor(count, thread_name_prefix="hpc-amp-reader")

    def read(
        self, read: Callable[[Sample], Content], batches: Iterable[Sequence[Sample]]
    ) -> Iterator[list[Content]]:
        """What `read` returns for the samples of each batch, in order. An error of `read` is raised
        when its batch is requested. Several passes may alternate, and end early."""
        if self._threads is None:
            for batch in batches:
                yield [read(sample) for sample in batch]
            return
        coming = iter(batches)
        waiting: deque[dict[Future[Content], Sample]] = deque()
        try:
            while True:
                for batch in itertools.islice(coming, 1 + AHEAD - len(waiting)):
                    waiting.append({self._threads.submit(read, sample): sample for sample in batch})
                if not waiting:
                    return
                yield _results(waiting.popleft())
        finally:
            for future in itertools.chain.from_iterable(waiting):
                future.cancel()

    def close(self) -> None:
        """End the threads, after the samples that they are reading."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)


def _results(batch: dict[Future[Content], Sample]) -> list[Content]:
    done, _ = wait(batch, SILENT_SECONDS)
    late = [sample for future, sample in batch.items() if future not in done]
    if late:
        log.warning(
            "%d of %d samples of a batch are not there after %.0f s. The first one is %s: check "
            "whether its file system responds",
            *(len(late), len(batch), SILENT_SECONDS, late[0]),
        )
    return [future.result() for future in batch]


def reader_count(asked: int | None, world: World) -> int:
    """The number of threads of this rank: `asked`, or one less than its cores, at most 8."""
    if asked is not None:
        return asked
    cores = len(os.sched_getaffinity(0))
    if cores == os.cpu_count():  # not bound to cores: the ranks of the node share all of them
        cores //= world.local_size
    return min(8, max(0, cores - 1))
