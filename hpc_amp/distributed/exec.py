"""`python -m hpc_amp.distributed.exec -- COMMAND ...`: run COMMAND as one rank.

The program gets the standard torch.distributed variables, whichever launcher started this process,
and its world has to be the one that the job requests. This process is replaced by the program, so
that signals and exit codes are the program's own. With several ranks, it may stay above the program
instead, to label its output and to understand its exit status (`hpc_amp.distributed.supervise`).

With `--job JOB_JSON`, the command, its environment and its working directory come from the run
directory, because text from a configuration never passes through a shell. Options after it run
something else in the command's place:

    --mpi-probe          the MPI check (`hpc_amp.preflight.mpi`)
    --preflight FOLDER   the preflight of this node (`hpc_amp.preflight.meeting`)
    --shell              a shell, as the only rank (`hpc-amp shell`)
    --ranks N            all N ranks of a single node (`hpc_amp.distributed.processes`)
    -- COMMAND ...       another command, as the only rank

With `-m MODULE ...`, this process runs a module of the run's copy of hpc_amp.
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import signal
import sys
from collections.abc import Mapping

from hpc_amp.distributed.ending import PARENT, end_with_parent
from hpc_amp.distributed.environment import environment_changes
from hpc_amp.distributed.world import World, WorldError, resolve, standard_variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

USAGE = (
    "usage: python -m hpc_amp.distributed.exec "
    "(--job JOB_JSON [--mpi-probe | --preflight FOLDER | --shell | --ranks N | "
    "-- COMMAND ...] "
    "| -m MODULE [ARGUMENT ...] | -- COMMAND [ARGUMENT ...])"
)


class RankProgram:
    """The program that a rank runs.

    `command`: `python` and `python3` as the first word mean the interpreter that runs this module.
    `changes`: changes to the environment. None removes a variable.
    `folder`: the working directory, or None for the present one.
    `may_stop`: whether an exit status of 75 means that the program stopped at a checkpoint.
    `label`: whether each line of the output gets the rank, if there are several ranks.
    """

    def __init__(
        self,
        command: list[str],
        changes: Mapping[str, str | None],
        folder: str | None = None,
        *,
        may_stop: bool = False,
        label: bool = False,
    ) -> None:
        self.command, self.changes, self.folder = command, changes, folder
        self.may_stop, self.label = may_stop, label


def main(arguments: list[str]) -> None:
    """Resolve this rank and become the command. If that fails, prints one line and exits with 2."""
    if len(arguments) >= 2 and arguments[0] == "-m":
        sys.argv[1:] = arguments[2:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    # A container runtime may have been started with blocked signals, which are inherited.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        if len(arguments) >= 2 and arguments[0] == "--job":
            _run_job(arguments[1], arguments[2:])
        elif len(arguments) >= 2 and arguments[0] == "--":
            _end_with_launcher()
            become(RankProgram(arguments[1:], {}))
        else:
            _fail(USAGE)
    except WorldError as error:
        _fail(str(error))


def _run_job(path: str, what: list[str]) -> NoReturn:
    """Become the job's program, or run `what` instead of it. Raises WorldError."""
    if not what:
        _end_with_launcher()
        become(_program(path, _read(path)))
    elif what == ["--mpi-probe"]:
        _end_with_launcher()
        _check_mpi(path, _read(path))
    elif what[0] == "--preflight" and len(what) == 2:
        from hpc_amp.preflight import meeting  # only needed here

        meeting.main(path, _read(path), what[1])
    elif what[0] == "--" and len(what) >= 2:
        become_alone(_session(path, _read(path), what[1:]))
    elif what[0] == "--ranks" and len(what) == 2:
        from hpc_amp.distributed.processes import run_ranks  # only needed here

        end_with_parent()  # by SIGTERM, at which the ranks save
        sys.exit(run_ranks(int(what[1]), [sys.executable, *sys.orig_argv[1:-2]]))
    elif what == ["--shell"]:
        become_alone(_shell(path, _read(path)))
    else:
        _fail(USAGE)


def _end_with_launcher() -> None:
    """Let this rank end with its launcher. Called before anything that takes time, such as reading
    a file: until then, the rank would outlive its launcher."""
    parent = os.environ.pop(PARENT, None)
    end_with_parent(parent=int(parent) if parent else None)


def become(program: RankProgram) -> NoReturn:
    """Replace this process by the program, as one rank of the job. Raises WorldError."""
    world = resolve(os.environ)
    _replace(program, world, f"rank {world.rank} cannot run")


def become_alone(program: RankProgram) -> NoReturn:
    """Replace this process by the program, as the only rank, even if this process belongs to an
    allocation with several ranks."""
    _replace(program, World(), "cannot run")


def _replace(program: RankProgram, world: World, complaint: str) -> NoReturn:
    """Replace this process by the program in `world`. If that fails, print `complaint` and exit
    with 2."""
    environment = _environment(program, standard_variables(world, os.environ))
    word = program.command[0]
    executable = sys.executable if word in ("python", "python3") else word
    command = [executable, *program.command[1:]]
    try:
        if program.folder is not None:
            os.chdir(program.folder)
        if world.size > 1 and (program.may_stop or program.label):
            sys.exit(_supervised(program, command, environment, world))
        # Python ignores these two, and a program would inherit that: `yes | head` would not end.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(executable, command, environment)
    except OSError as error:
        _fail(f"{complaint} {word!r} in {program.folder or os.getcwd()!r}: {error}")


def _supervised(
    program: RankProgram, command: list[str], environment: Mapping[str, str], world: World
) -> int:
    """Run the command as a child process, and return the exit status for the launcher."""
    from hpc_amp.distributed.labels import LabelledOutput  # only needed here
    from hpc_amp.distributed.supervise import supervise

    mark = None
    if program.may_stop and world.is_main:
        mark = os.path.join(os.path.dirname(os.environ["HPC_AMP_OUTCOME_FILE"]), "stopped")
    return supervise(
        command,
        environment,
        # The supervisor forwards SIGTERM, and the program saves then. If the supervisor is gone,
        # the program must not go on for as long as that.
        functools.partial(end_with_parent, signal.SIGKILL, os.getpid()),
        may_stop=program.may_stop,
        mark=mark,
        output=LabelledOutput(world.rank) if program.label else None,
    )


def _check_mpi(path: str, resolved: Mapping[str, Any]) -> NoReturn:
    """Exit with the status of the MPI check, in the environment that the program would have."""
    from hpc_amp.preflight import mpi  # only needed here

    program = _program(path, resolved)
    folder = program.folder or os.getcwd()
    world = resolve(os.environ)
    environment = _environment(program, standard_variables(world, os.environ))
    try:
        status = mpi.probe(resolved["job"], _folder(path), folder, world, environment)
    except OSError as error:
        _fail(f"rank {world.rank} cannot check MPI in {folder!r}: {error}")
    sys.exit(status)


def _environment(program: RankProgram, standard: Mapping[str, str]) -> dict[str, str]:
    """The environment of this process with the program's changes. The variables of the world come
    last, because a program may not change them."""
    changed: dict[str, str | None] = {**os.environ, **program.changes, **standard}
    return {name: value for name, value in changed.items() if value is not None}


def _folder(path: str) -> str:
    """The run directory: the folder of `job.json`."""
    return os.path.dirname(path) or os.curdir


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            resolved: dict[str, Any] = json.load(file)
    except (OSError, ValueError) as error:
        _fail(f"{path} cannot be read inside the job: {error}")
    return resolved


def _program(path: str, resolved: Mapping[str, Any]) -> RankProgram:
    """The job's own program, by default the training of a task."""
    job = resolved["job"]
    command = _of_copy(job["run"] or ["python", "-m", "hpc_amp.train", path], _folder(path))
    may_stop = job["run"] is not None and bool(os.environ.get("HPC_AMP_OUTCOME_FILE"))
    changes = environment_changes(os.environ, resolved, _folder(path))
    label = bool(job.get("launch", {}).get("label"))
    return RankProgram(command, changes, resolved["workdir"], may_stop=may_stop, label=label)


def _of_copy(command: list[str], run_dir: str) -> list[str]:
    """The command, where `python -m hpc_amp...` runs the run's own copy. Python itself would prefer
    a package in the working directory, which may be a clone of hpc-amp."""
    python, option, module = (*command[:3], "", "", "")[:3]
    if python in ("python", "python3") and option == "-m" and module.startswith("hpc_amp."):
        return [python, os.path.join(run_dir, "src"), *command[1:]]
    return command


def _session(path: str, resolved: Mapping[str, Any], command: list[str]) -> RankProgram:
    """Any command, with the environment and folder of the job. `HPC_AMP_JOB` is the path of
    `job.json`."""
    changes = {**environment_changes(os.environ, resolved, _folder(path)), "HPC_AMP_JOB": path}
    return RankProgram(_of_copy(command, _folder(path)), changes, resolved["workdir"])


def _shell(path: str, resolved: Mapping[str, Any]) -> RankProgram:
    """An interactive shell without start-up files, which are written for the host and may fail in
    an image. `python` means the job's interpreter, as in a command."""
    import shutil  # only needed here

    program = _session(path, resolved, ["/bin/sh", "-i"])
    name = resolved["job"]["name"]
    # Apptainer's PROMPT_COMMAND would replace the prompt. Without start-up files, bash would cut
    # the user's history file to 500 lines.
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
