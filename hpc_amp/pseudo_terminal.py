"""Pseudo-terminals: what is common to the programs that relay one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import termios


def read_available(descriptor: int) -> bytes:
    """Read what a pipe or the master side of a pseudo-terminal has, at most 64 KiB. Waits if there
    is nothing. Returns an empty value after the other side was closed, which a pseudo-terminal
    reports as EIO and a pipe as the end of the file."""
    try:
        return os.read(descriptor, 65536)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""


def copy_window_size(source: int, target: int) -> None:
    """Give the terminal `target` the rows and columns of the terminal `source`. Does nothing if one
    of the two descriptors is not a terminal."""
    with contextlib.suppress(OSError):
        size = fcntl.ioctl(source, termios.TIOCGWINSZ, b"\0" * 8)
        fcntl.ioctl(target, termios.TIOCSWINSZ, size)
