"""`python -m hpc_amp.distributed.exec -- COMMAND ...`: run COMMAND as one rank.

Gives any program the standard torch.distributed variables, whichever launcher started it, checks
that the world is the one that was asked for, and replaces itself by the program, so that signals
and exit codes are the program's own. With `--job JOB_JSON` the command, its environment and its
working directory come from the run directory: text from a configuration never passes through a
shell.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from hpc_amp.distributed.world import WorldError, resolve, standard_variables

_PR_SET_PDEATHSIG = 1  # from linux/prctl.h

USAGE = "usage: python -m hpc_amp.distributed.exec (--job JOB_JSON | -- COMMAND [ARGUMENT ...])"


def main(arguments: list[str]) -> NoReturn:
    """Resolve this rank and become the command. Exits with 2 and one line where it cannot."""
    try:
        if len(arguments) == 2 and arguments[0] == "--job":
            command, extra, folder = _from_job(Path(arguments[1]))
        elif len(arguments) >= 2 and arguments[0] == "--":
            command, extra, folder = arguments[1:], {}, None
        else:
            _fail(USAGE)
        become(command, extra, folder)
    except WorldError as error:
        _fail(str(error))


def become(command: list[str], extra: Mapping[str, str], folder: str | None) -> NoReturn:
    """Replace this process by `command`, as one rank. `python` and `python3` as first word mean the
    interpreter that runs this. Raises WorldError."""
    world = resolve(os.environ)
    environment = {**os.environ, **extra, **standard_variables(world, os.environ)}
    program = sys.executable if command[0] in ("python", "python3") else command[0]
    _end_with_parent()
    try:
        if folder is not None:
            os.chdir(folder)
        os.execvpe(program, [program, *command[1:]], environment)
    except OSError as error:
        _fail(f"rank {world.rank} cannot run {command[0]!r} in {folder or os.getcwd()!r}: {error}")


def _end_with_parent() -> None:
    """Have the kernel send SIGTERM when the launcher's process dies. A killed torchrun would leave
    its ranks behind, training on in a directory that the next attempt writes to."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _from_job(path: Path) -> tuple[list[str], dict[str, str], str]:
    try:
        resolved = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        _fail(f"{path} cannot be read inside the job: {error}")
    job = resolved["job"]
    extra = dict(job["container"]["env"])
    search_path = (str(path.parent / "src"), extra.get("PYTHONPATH", os.environ.get("PYTHONPATH")))
    extra["PYTHONPATH"] = os.pathsep.join(filter(None, search_path))
    command = job["run"] or [sys.executable, "-m", "hpc_amp.train", str(path)]
    return command, extra, resolved["workdir"]


def _fail(message: str) -> NoReturn:
    print(f"hpc-amp: {message}", file=sys.stderr, flush=True)
    sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
