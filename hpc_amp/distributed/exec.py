"""`python -m hpc_amp.distributed.exec -- COMMAND ...`: run COMMAND as one rank.

Gives any program the standard torch.distributed variables, whichever launcher started it, checks
that the world is the one that was asked for, and replaces itself by the program, so that signals
and exit codes are the program's own. With `--job JOB_JSON` the command, its environment and its
working directory come from the run directory: text from a configuration never passes through a
shell. With `--mpi-probe` behind it, the MPI check (`hpc_amp.preflight.mpi`) runs in the command's
place, with `--preflight FOLDER` this node's preflight (`hpc_amp.preflight.meeting`); with `--shell`
or `-- COMMAND` a shell or another command, as the only rank that there is (`hpc-amp shell`).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from hpc_amp.distributed.ending import end_with_parent
from hpc_amp.distributed.environment import environment_changes
from hpc_amp.distributed.world import World, WorldError, resolve, standard_variables

USAGE = (
    "usage: python -m hpc_amp.distributed.exec "
    "(--job JOB_JSON [--mpi-probe | --preflight FOLDER | --shell | -- COMMAND ...] "
    "| -- COMMAND [ARGUMENT ...])"
)


@dataclass(frozen=True)
class RankProgram:
    """What a rank becomes."""

    command: list[str]
    """`python` and `python3` as first word mean the interpreter that runs this."""
    changes: Mapping[str, str | None] = field(default_factory=dict)
    """Of the environment; None takes a variable away."""
    folder: str | None = None
    """The working directory, if not this one."""
    may_stop: bool = False
    """Whether an exit status of 75 means that it stopped at a checkpoint."""


def main(arguments: list[str]) -> NoReturn:
    """Resolve this rank and become the command. Exits with 2 and one line where it cannot."""
    # A container runtime may have been started with signals blocked, which is inherited.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        if len(arguments) >= 2 and arguments[0] == "--job":
            _run_job(Path(arguments[1]), arguments[2:])
        elif len(arguments) >= 2 and arguments[0] == "--":
            become(RankProgram(arguments[1:]))
        else:
            _fail(USAGE)
    except WorldError as error:
        _fail(str(error))


def _run_job(path: Path, what: list[str]) -> NoReturn:
    """The job's own program, or what is wanted in its place. Raises WorldError."""
    if not what:
        become(_program(path, _read(path)))
    elif what == ["--mpi-probe"]:
        _check_mpi(path, _read(path))
    elif what[0] == "--preflight" and len(what) == 2:
        from hpc_amp.preflight import meeting  # which no rank needs

        meeting.main(path, _read(path), Path(what[1]))
    elif what[0] == "--" and len(what) >= 2:
        become_alone(_session(path, _read(path), what[1:]))
    elif what == ["--shell"]:
        become_alone(_shell(path, _read(path)))
    else:
        _fail(USAGE)


def become(program: RankProgram) -> NoReturn:
    """Replace this process by the program, as one rank. Raises WorldError."""
    world = resolve(os.environ)
    end_with_parent()
    _replace(program, world, f"rank {world.rank} cannot run")


def become_alone(program: RankProgram) -> NoReturn:
    """Replace this process by the program, as the only rank there is, whatever an allocation that
    it is in may say of others."""
    _replace(program, World(), "cannot run")


def _replace(program: RankProgram, world: World, complaint: str) -> NoReturn:
    environment = _environment(program, standard_variables(world, os.environ))
    word = program.command[0]
    executable = sys.executable if word in ("python", "python3") else word
    command = [executable, *program.command[1:]]
    try:
        if program.folder is not None:
            os.chdir(program.folder)
        if program.may_stop and world.size > 1:
            from hpc_amp.distributed.supervise import supervise  # which no other rank needs

            mark = Path(os.environ["HPC_AMP_OUTCOME_FILE"]).with_name("stopped")
            ended = supervise(
                command, environment, mark if world.is_main else None, end_with_parent
            )
            sys.exit(ended)
        os.execvpe(executable, command, environment)
    except OSError as error:
        _fail(f"{complaint} {word!r} in {program.folder or os.getcwd()!r}: {error}")


def _check_mpi(path: Path, resolved: Mapping[str, Any]) -> NoReturn:
    """End with the status of the MPI check, in the environment that the program would have."""
    from hpc_amp.preflight import mpi  # which no other rank needs

    program = _program(path, resolved)
    folder = program.folder or os.getcwd()
    world = resolve(os.environ)
    environment = _environment(program, standard_variables(world, os.environ))
    end_with_parent()
    try:
        status = mpi.probe(resolved["job"], path.parent, folder, world, environment)
    except OSError as error:
        _fail(f"rank {world.rank} cannot check MPI in {folder!r}: {error}")
    sys.exit(status)


def _environment(program: RankProgram, standard: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, changed; the world is not the program's to set."""
    changed: dict[str, str | None] = {**os.environ, **program.changes, **standard}
    return {name: value for name, value in changed.items() if value is not None}


def _read(path: Path) -> dict[str, Any]:
    try:
        resolved: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        _fail(f"{path} cannot be read inside the job: {error}")
    return resolved


def _program(path: Path, resolved: Mapping[str, Any]) -> RankProgram:
    job = resolved["job"]
    command = job["run"] or [sys.executable, "-m", "hpc_amp.train", str(path)]
    may_stop = job["run"] is not None and bool(os.environ.get("HPC_AMP_OUTCOME_FILE"))
    changes = environment_changes(os.environ, resolved, path.parent)
    return RankProgram(command, changes, resolved["workdir"], may_stop)


def _session(path: Path, resolved: Mapping[str, Any], command: list[str]) -> RankProgram:
    """Any command with all that the job's own would have; `HPC_AMP_JOB` tells where the job is."""
    changes = {**environment_changes(os.environ, resolved, path.parent), "HPC_AMP_JOB": str(path)}
    return RankProgram(command, changes, resolved["workdir"])


def _shell(path: Path, resolved: Mapping[str, Any]) -> RankProgram:
    """A shell to type into. Nobody's start-up files: they are made for the host, and activate what
    does not work in an image. `python` means the job's interpreter, as it does in a command."""
    program = _session(path, resolved, ["/bin/sh", "-i"])
    name = resolved["job"]["name"]
    # Apptainer's PROMPT_COMMAND would put a prompt of its own in place of ours. Without start-up
    # files bash would cut the user's history file down to 500 lines.
    changes = {**program.changes, "PS1": f"({name}) $ ", "PROMPT_COMMAND": None}
    changes.setdefault("HISTFILESIZE", "1000000")
    if os.access("/bin/bash", os.X_OK):
        program.command[:] = ["/bin/bash", "--norc", "-i"]
        changes["PS1"] = rf"({name}) \h:\w\$ "
    search = changes.get("PATH") or os.environ.get("PATH", os.defpath)
    own = os.path.dirname(sys.executable)
    found = shutil.which("python", path=search)
    if shutil.which("python", path=own) and os.path.dirname(found or "") != own:
        changes["PATH"] = os.pathsep.join([own, search])
    return RankProgram(program.command, changes, program.folder)


def _fail(message: str) -> NoReturn:
    print(f"hpc-amp: {message}", file=sys.stderr, flush=True)
    sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
