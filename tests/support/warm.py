"""Programs in forks of one process that has imported torch.

    ended = warm.run("script.py", "--steps", "2", cwd=folder)

does what `subprocess.run([sys.executable, "script.py", ...])` does, but without five seconds of
imports. The fork has its own arguments, environment, folder and output; `__main__` is the program,
and the process ends as Python ends a program. Use a real process where the start itself is tested,
or a variable that torch reads when it is imported: OMP_NUM_THREADS is 1 here, and there is no GPU.

`support.commands` does the same for `hpc-amp`, with a process that has not imported torch.

Run as a program (`python -m support.warm torch`, or another name of `IMPORTS`), this file is the
process that forks: each line of its input is a request in JSON, each line of its output an answer.
{"start": {...}} is answered with the process number of the program, {"ended": PID} with its exit
status once it has ended.
"""

from __future__ import annotations

import atexit
import fcntl
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from support.environment import REPOSITORY, clean_environ
from support.warm_python import prepare_to_fork
from support.zygote import Zygote

FIXED = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
"""Variables that torch reads when it is imported."""
INSTALLED = [
    path for path in sys.path[1:] if path not in os.environ.get("PYTHONPATH", "").split(":")
]
"""The part of the search path that every program has."""


class Warm(Zygote):
    """The process that forks programs. `imports` is a name in `IMPORTS`, `fixed` are variables that
    it has, and each of its programs, and `python` is as for `Zygote`."""

    def __init__(
        self,
        imports: str,
        fixed: Mapping[str, str],
        python: Sequence[str | Path] = (sys.executable,),
    ) -> None:
        self._fixed = fixed
        super().__init__("support.warm", fixed, imports, python=python)

    def run(
        self,
        *words: str | Path,
        cwd: Path | None = None,
        environ: Mapping[str, str] | None = None,
        strict: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end: see `start`."""
        return self.start(*words, cwd=cwd, environ=environ, strict=strict).wait()

    def start(
        self,
        *words: str | Path,
        cwd: Path | None = None,
        environ: Mapping[str, str] | None = None,
        strict: bool = False,
    ) -> Program:
        """Start `python WORDS`: a script, `-m` and a module, or `-c` and a program, and arguments.
        `environ` is added to that of `clean_environ`. Where `strict`, FutureWarnings are errors."""
        added = clean_environ(**{**self._fixed, **(environ or {})})
        return self._start(words, cwd or Path.cwd(), added, strict)

    def run_with(
        self,
        environ: Mapping[str, str],
        *words: str | Path,
        cwd: Path,
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end: see `start`. `environ` is the whole environment. Raises
        subprocess.TimeoutExpired."""
        return self._start(words, cwd, environ, strict=False).wait(timeout)

    def start_on_terminal(
        self, terminal: str, environ: Mapping[str, str], *words: str, cwd: Path
    ) -> int:
        """Start a program in a session of its own, whose terminal is `/dev/pts/...`: see `start`.
        `environ` is the whole environment. Returns its process number when it has the terminal."""
        request = {"words": words, "cwd": str(cwd), "environ": dict(environ), "terminal": terminal}
        pid: int = self.ask("start", request)
        return pid

    def _start(
        self, words: Sequence[str | Path], cwd: Path, environ: Mapping[str, str], strict: bool
    ) -> Program:
        # In memory, if the tests are: on ext4, files that come and go make every new one dear.
        output = tempfile.TemporaryDirectory(dir=os.environ.get("PYTEST_DEBUG_TEMPROOT"))
        request = {
            "words": list(map(str, words)),
            "cwd": str(cwd),
            "environ": dict(environ),
            "output": output.name,
            "strict": strict,
        }
        pid = self.ask("start", request)
        return Program(self, pid, os.pidfd_open(pid), request["words"], output)


@dataclass
class Program:
    """A program that was started."""

    warm: Warm
    pid: int
    pidfd: int
    words: list[str]
    output: tempfile.TemporaryDirectory[str] = field(repr=False)

    def wait(self, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
        """How it ended. Raises subprocess.TimeoutExpired where it was killed after `timeout`
        seconds."""
        # Asked for earlier, the answer would keep the process that forks from other requests.
        in_time = bool(select.select([self.pidfd], [], [], timeout)[0])
        if not in_time:
            os.kill(self.pid, signal.SIGKILL)
        os.close(self.pidfd)
        status = self.warm.ask("ended", self.pid)
        said = {name: (Path(self.output.name) / name).read_text() for name in ("stdout", "stderr")}
        self.output.cleanup()
        if not in_time:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.words, timeout, said["stdout"], said["stderr"])
        return subprocess.CompletedProcess(self.words, status, **said)


def serve() -> None:
    """Answer requests until there are no more."""
    for line in sys.stdin:
        ((verb, given),) = json.loads(line).items()
        if verb == "start":
            answer = start(given)
        else:
            answer = os.waitstatus_to_exitcode(os.waitpid(given, 0)[1])
        print(json.dumps(answer), flush=True)


def start(request: dict[str, Any]) -> int:
    """The process number of the program, which has its terminal, if it gets one."""
    terminal = None
    if "terminal" in request:
        terminal = os.open(request["terminal"], os.O_RDWR | os.O_NOCTTY)
    pid = os.fork()
    if pid == 0:
        end(status_of(request, terminal))
    if terminal is not None:
        os.close(terminal)
    return pid


def status_of(request: dict[str, Any], terminal: int | None) -> int:
    """The exit status of the program, run in this process."""
    try:
        connect(request, terminal)
        become(request)
    except SystemExit as ended:
        if isinstance(ended.code, int) or ended.code is None:
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def connect(request: dict[str, Any], terminal: int | None) -> None:
    """Let this process have the program's files, or its terminal in a session of its own."""
    if terminal is None:
        files = [os.open(os.devnull, os.O_RDONLY)]
        for name in ("stdout", "stderr"):
            path = Path(request["output"]) / name
            files.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    else:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        files = [terminal] * 3
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    for number, file in enumerate(files):
        os.dup2(file, number)
    sys.stdin = open(0)  # noqa: SIM115  # the one before has requests in its buffer


def become(request: dict[str, Any]) -> None:
    """Run the program."""
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]  # torch would be taken apart at the end
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["cwd"])
    tempfile.tempdir = None  # may be another one in this environment
    if request.get("strict"):
        warnings.simplefilter("error", FutureWarning)
    time.tzset()
    words = request["words"]
    search = [path for path in os.environ.get("PYTHONPATH", "").split(":") if path]
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path[:] = [os.getcwd(), *search, *INSTALLED]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path[:] = ["", *search, *INSTALLED]
        exec(words[1], {"__name__": "__main__"})
    else:
        sys.argv = words
        sys.path[:] = [str(Path(words[0]).resolve().parent), *search, *INSTALLED]
        runpy.run_path(words[0], run_name="__main__")


def end(status: int) -> NoReturn:
    """End as Python does, but without taking torch apart, which takes a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # the terminal is gone
        status = 120
    os._exit(status)


def import_torch() -> None:
    """What nearly every program with torch imports, torch._dynamo when it makes an optimizer, and
    what a training imports."""
    importlib.import_module("torch._dynamo")
    importlib.import_module("hpc_amp.train.api")
    import_writers()


def import_writers() -> None:
    """What writes curves, pictures and checkpoints, and is imported when it is first used."""
    from PIL import Image

    Image.init()
    for name in ("tensorboard", "serialization.config"):
        importlib.import_module(f"torch.utils.{name}")
    importlib.import_module("tensorboard.plugins.hparams.metadata")


def import_commands() -> None:
    """What verbs of `hpc-amp` import. A large library that few need is left to them."""
    for name in (
        "cli",
        "jobs",
        "schedulers",
        "launchers",
        "containers",
        "campaigns",
        "sweep",
        "study",
    ):
        package = importlib.import_module(f"hpc_amp.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith(".functions"):
                importlib.import_module(module.name)
    for name in ("jinja2", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        importlib.import_module(name)
    rehearse()
    assert not {"torch", "libcst", "submitit"} & sys.modules.keys()


def rehearse() -> None:
    """Make the launch scripts of a training and of a program: the first job imports the keys of its
    task, compiles the template and reads the package. Read the known failures, which compiles
    hundreds of patterns. What depends on installed packages is forgotten again."""
    from hpc_amp.config import command
    from hpc_amp.explain.failures import known_failures
    from hpc_amp.jobs.code import package_files
    from hpc_amp.jobs.render import render
    from hpc_amp.jobs.submit import prepare
    from hpc_amp.schedulers import grammars

    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder, "job.yaml")
        for program in ("train: {}", "run: ['true']"):
            job.write_text(f"name: rehearsal\nsite: slurm\n{program}\n")
            plan, _ = prepare(job, [f"runs_dir={folder}/runs"])
            render(plan)
            package_files(plan)
    command._runtimes.cache_clear()
    grammars.cache_clear()
    known_failures()


def import_standins() -> None:
    """What commands and servers of the stand-ins of schedulers import."""
    sys.path.insert(0, str(REPOSITORY / "tests" / "standins"))
    for name in ("client", "cobalt_commands", "cobalt_server", "pbs_commands", "pbs_server"):
        importlib.import_module(f"engine.{name}")


IMPORTS = {"torch": import_torch, "commands": import_commands, "standins": import_standins}

if __name__ == "__main__":
    IMPORTS[sys.argv[1]]()
    prepare_to_fork()
    serve()
    os._exit(0)  # taking torch apart takes seconds
