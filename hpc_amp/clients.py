"""Run commands of this machine, each within a bound of time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from hpc_amp.resources import Which, which
from hpc_amp.signals import interrupted_after

SECONDS = 20.0
"""The time that a command may take. A busy scheduler needs a few seconds."""
_GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL."""


class Clients:
    """Runs commands and returns their output. What goes wrong is recorded in `unread`, and does not
    raise: other commands may still answer."""

    def __init__(self, *, seconds: float = SECONDS, which: Which = which) -> None:
        self.unread: list[str] = []
        """The commands that gave no answer, with the reason."""
        self.which = which
        self._seconds = seconds
        self._silent: set[str] = set()

    def has(self, program: str) -> bool:
        """Whether a program is on this machine's PATH."""
        return self.which(program) is not None

    def output(
        self, *command: str, name: str = "", with_errors: bool = False, quiet: bool = False
    ) -> str:
        """The output of a command; empty if it is missing, fails or does not end in time. A program
        that did not end in time is not called again. `name` is the command for the user, if it is
        shorter. `with_errors`: with the text on its standard error. `quiet`: a failure is not
        recorded."""
        shown = name or " ".join(command)
        program = self.which(command[0])
        if program is None:
            self._record(command[0], "is not on this machine's PATH")
            return ""
        if command[0] in self._silent:
            return ""
        try:
            status, output, errors = run_in_time([program, *command[1:]], self._seconds)
        except OSError as error:
            self._record(shown, f"does not run: {error.strerror}")
            return ""
        except subprocess.TimeoutExpired:
            self._silent.add(command[0])
            self._record(shown, f"did not answer within {self._seconds:g} s")
            return ""
        if status != 0 and quiet:
            return ""
        if status != 0:
            lines = [line.strip() for line in (errors or output).splitlines() if line.strip()]
            self._record(shown, " / ".join(lines)[:200] or f"ended with status {status}")
            return ""
        return output + errors if with_errors else output

    def _record(self, command: str, problem: str) -> None:
        text = f"{command}: {problem}"
        if text not in self.unread:
            self.unread.append(text)


def run_in_time(
    command: Sequence[str],
    seconds: float,
    *,
    environ: Mapping[str, str] | None = None,
    folder: str | None = None,
) -> tuple[int, str, str]:
    """Run a command, and return its status, output and error output. It has a session of its own,
    so that also the children of a wrapper script end when the time is over or Ctrl-C comes. Raises
    OSError if it does not start, and subprocess.TimeoutExpired."""
    process = None
    try:
        with interrupted_after():
            process = subprocess.Popen(
                command,
                text=True,
                errors="replace",
                env=environ,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        output, errors = process.communicate(timeout=seconds)
    except BaseException:
        if process is not None:
            _end(process)
            # Not read to their end: a process that left the session may still have them open.
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        raise
    return process.returncode, output, errors


def _end(process: subprocess.Popen[str]) -> None:
    """End a command and its children. SIGTERM comes first: start-up files of a login shell may hold
    a lock that they remove at their end."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
