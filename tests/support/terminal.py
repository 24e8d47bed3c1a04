"""A terminal with a program on it, and somebody who types and watches.

with Terminal([...], cwd=folder, environ=environ) as terminal:
    terminal.wait_for(r"\\$ ")
    terminal.type("exit 7")
    assert terminal.end() == 7
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpc_amp.pseudo_terminal import read_available
from support import commands

INTERRUPT = b"\x03"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
_HANGS = 600  # seconds; only there to end what would hang


class Terminal:
    """A program in a session of its own, whose terminal is this object."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        environ: Mapping[str, str],
        rows: int = 24,
        columns: int = 80,
    ) -> None:
        self.seen = ""
        """All that it has shown, without colours and the like."""
        self._raw = b""
        self._read_to = 0
        self._status: int | None = None
        self._closed = False
        size = struct.pack("HHHH", rows, columns, 0, 0)
        self.pid, self._master = self._start(command, cwd, {"TERM": "xterm", **environ}, size)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """What is still there gets a hang-up, as when a window is closed, and is gone then. A test
        that fails shows what the terminal showed."""
        if error is not None:
            print(self.seen)
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGHUP)
            deadline = time.monotonic() + 30
            while not self._ended() and time.monotonic() < deadline:
                self._pump(0.2)
            if self._status is None:
                os.kill(self.pid, signal.SIGKILL)
                while not self._ended():
                    time.sleep(0.01)
        self.close()

    @property
    def raw(self) -> bytes:
        """All that it has shown, with all control codes."""
        return self._raw

    def close(self) -> None:
        """Close the window: the program's terminal is gone."""
        if not self._closed:
            self._closed = True
            os.close(self._master)

    def send(self, data: bytes) -> None:
        """Press keys."""
        os.write(self._master, data)

    def type(self, line: str) -> None:
        """A line and Enter."""
        self.send(line.encode() + b"\r")

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.send(INTERRUPT)

    def resize(self, rows: int, columns: int) -> None:
        """The user drags the corner of the window."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def settings(self) -> list[object]:
        """Modes of the terminal, such as its echo."""
        return termios.tcgetattr(self._master)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Until it has shown the pattern, behind what was found the last time."""
        deadline = time.monotonic() + _HANGS
        while True:
            match = re.compile(pattern).search(self.seen, self._read_to)
            if match:
                self._read_to = match.end()
                return match
            if not self._pump(0.5) and self._ended():
                raise AssertionError(f"ended without {pattern!r}:\n{self.seen}")
            if time.monotonic() > deadline:
                raise AssertionError(f"waited in vain for {pattern!r}:\n{self.seen}")

    def end(self) -> int:
        """Until the program has ended: its exit status, negative for a signal."""
        deadline = time.monotonic() + _HANGS
        while not self._ended():
            self._pump(0.1)
            if time.monotonic() > deadline:
                raise AssertionError(f"it does not end:\n{self.seen}")
        while self._pump(0.0):
            pass
        assert self._status is not None
        return self._status

    def _ended(self) -> bool:
        if self._status is None:
            self._status = self._status_if_ended()
        return self._status is not None

    def _start(
        self, command: Sequence[str], cwd: Path, environ: Mapping[str, str], size: bytes
    ) -> tuple[int, int]:
        """The program's process, and our side of its terminal."""
        pid, master = pty.fork()
        if pid == 0:
            with contextlib.suppress(OSError):
                fcntl.ioctl(0, termios.TIOCSWINSZ, size)
                os.chdir(cwd)
                os.execvpe(command[0], list(command), environ)
            os._exit(127)
        return pid, master

    def _status_if_ended(self) -> int | None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def _pump(self, seconds: float) -> bool:
        """Take what it shows; False where that was nothing."""
        if self._closed:
            time.sleep(min(seconds, 0.05))
            return False
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        data = read_available(self._master)
        if not data:
            time.sleep(min(seconds, 0.05))
            return False
        self._raw += data
        text = _CONTROL.sub("", self._raw.decode(errors="replace"))
        self.seen = text.replace("\r", "")
        return True


class CommandTerminal(Terminal):
    """`python WORDS`, the command, as a fork: see `support.commands`."""

    def _start(
        self, command: Sequence[str], cwd: Path, environ: Mapping[str, str], size: bytes
    ) -> tuple[int, int]:
        master, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, size)
        self._forks = commands.server()
        pid = self._forks.start_on_terminal(os.ttyname(its), environ, *command[1:], cwd=cwd)
        self._process = os.pidfd_open(pid)
        os.close(its)  # the program has it now
        return pid, master

    def _status_if_ended(self) -> int | None:
        if not select.select([self._process], [], [], 0)[0]:
            return None
        os.close(self._process)
        status: int = self._forks.ask("ended", self.pid)
        return status
