"""Labels for the output of ranks: each line begins with `[rank3]: `, as in torch's own tracebacks.

The process above a rank's program (`hpc_amp.distributed.supervise`) reads the program's output
from pipes and writes it with labels. It is the same under every launcher, and it outlives the
program, so that the last lines are not lost. Standard library only.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import time
from collections.abc import Callable, Iterable

_BLOCK = 2**16
_AT_ONCE = 4096
"""So many bytes reach a pipe in one piece, if several ranks write to it (PIPE_BUF of Linux)."""
PATIENCE = 1.0
"""Seconds until an unfinished line is written."""


class LabelledOutput:
    """Pipes for the output of a program, and what copies it to the output of this process.

    `stdout` and `stderr` are for the program. If both outputs of this process are one file, they
    are one pipe, so that the order of their lines is kept.
    """

    def __init__(self, rank: int) -> None:
        label = b"[rank%d]: " % rank
        reader, self.stdout = os.pipe()
        self._streams = {reader: Stream(1, label, self._wait)}
        self.stderr = self.stdout
        if not os.path.sameopenfile(1, 2):
            reader, self.stderr = os.pipe()
            self._streams[reader] = Stream(2, label, self._wait)
        self._open = set(self._streams)
        self.before_write: Callable[[int], None] = _wait_for
        """Waits until the file with a number can be written to."""

    def _wait(self, target: int) -> None:
        self.before_write(target)

    def begin(self) -> None:
        """Close the program's ends of the pipes, after the program has got them."""
        for end in {self.stdout, self.stderr}:
            os.close(end)

    @property
    def is_open(self) -> bool:
        """Whether a process may still write."""
        return bool(self._open)

    def copy(self, awake: int, timeout: float | None) -> None:
        """Copy what is there, after waiting for output, until `awake` can be read, or for `timeout`
        seconds. An unfinished line is written after some time."""
        if any(stream.unfinished for stream in self._streams.values()):
            timeout = PATIENCE if timeout is None else min(timeout, PATIENCE)
        readable = ready([*self._open, awake], [], timeout)
        for reader in sorted(self._open & readable):
            data = os.read(reader, _BLOCK)
            if data:
                self._streams[reader].write(data)
            else:
                self._open.remove(reader)
        for reader in self._streams.keys() - readable:
            self._streams[reader].flush_if_old()

    def finish(self) -> None:
        """Copy what is left in the pipes, and write unfinished lines. Nothing is waited for, since
        processes that the program has left behind may hold the pipes for ever."""
        reader, writer = os.pipe()
        self.copy(reader, 0)
        os.close(reader)
        os.close(writer)
        for stream in self._streams.values():
            stream.flush()


class Stream:
    """Writes bytes to the file with the number `target`, each line with a label.

    A carriage return, with which progress bars overwrite a line, ends a line, too. A line without
    text gets no label, and neither does a line that has it already, such as a line of torch's
    tracebacks.
    """

    def __init__(
        self, target: int, label: bytes, wait: Callable[[int], None] | None = None
    ) -> None:
        self._target = target
        self._wait = wait or _wait_for
        line = rb"(?<![^\r\n])(?!%s)[^\r\n]+" % re.escape(label.rstrip())
        self._line = re.compile(line)
        self._with_label = label.replace(b"\\", rb"\\") + rb"\g<0>"
        self._rest = b""
        self._since = 0.0
        self._inside = False
        """Whether a part of the present line has been written."""

    @property
    def unfinished(self) -> bool:
        """Whether a part of a line waits for its end."""
        return bool(self._rest)

    def write(self, data: bytes) -> None:
        """Write the lines that end in `data`, and keep the rest."""
        if self._inside:
            end = _end_of_first_line(data)
            self._send(data[:end])
            self._inside = end == len(data) and data[-1:] not in b"\r\n"
            data = data[end:]
        if not self._rest:
            self._since = time.monotonic()
        data = self._rest + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._rest = data[end:]
        if end:
            self._since = time.monotonic()
            self._send(self._line.sub(self._with_label, data[:end]))
        if len(self._rest) >= _BLOCK:
            self.flush()

    def flush_if_old(self) -> None:
        """Write a part of a line that has waited for some time."""
        if self._rest and time.monotonic() >= self._since + PATIENCE:
            self.flush()

    def flush(self) -> None:
        """Write the part of a line that waits for its end."""
        if self._rest:
            self._send(self._line.sub(self._with_label, self._rest))
            self._rest = b""
            self._inside = True

    def _send(self, text: bytes) -> None:
        """Write whole lines in pieces that other ranks do not interrupt. What the target refuses,
        such as a full disk, is lost: the program goes on."""
        begin = 0
        with contextlib.suppress(OSError):
            while begin < len(text):
                end = len(text)
                if end - begin > _AT_ONCE:
                    end = text.rfind(b"\n", begin, begin + _AT_ONCE) + 1 or begin + _AT_ONCE
                # So few bytes do not block then, unless other ranks fill the same pipe meanwhile.
                self._wait(self._target)
                # Another process may have made the target non-blocking.
                with contextlib.suppress(BlockingIOError):
                    begin += os.write(self._target, text[begin:end])


def ready(readers: Iterable[int], writers: Iterable[int], timeout: float | None) -> set[int]:
    """Wait until one of the files with these numbers can be read or written, or has ended, or for
    `timeout` seconds. Returns the numbers of those that can. Unlike select, it takes any number."""
    poll = select.poll()
    for number in readers:
        poll.register(number, select.POLLIN)
    for number in writers:
        poll.register(number, select.POLLOUT)
    milliseconds = None if timeout is None else math.ceil(timeout * 1000)
    return {number for number, _ in poll.poll(milliseconds)}


def _wait_for(target: int) -> None:
    ready([], [target], None)


def _end_of_first_line(data: bytes) -> int:
    ends = [place + 1 for place in (data.find(b"\n"), data.find(b"\r")) if place >= 0]
    return min(ends, default=len(data))
