"""Programs in forks of one process that has imported torch.

    ended = warm.run("script.py", "--steps", "2", cwd=folder)

does what `subprocess.run([sys.executable, "script.py", ...])` does, but without five seconds of
imports. The fork has its own arguments, environment, folder and output; `__main__` is the program,
and the process ends as Python ends a program. Use a real process where the start itself is tested,
or a variable that torch reads when it is imported: OMP_NUM_THREADS is 1 here, and there is no GPU.

Run as a program (`python -m support.warm`), this file is the process that forks: each line of its
input is a request in JSON, each line of its output an answer. {"start": {...}} is answered with the
process number of the program, {"ended": PID} with its exit status once it has ended.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from support.environment import clean_environ
from support.zygote import Zygote

FIXED = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
"""Variables that torch reads when it is imported."""


class Warm(Zygote):
    """The process that forks programs."""

    def __init__(self) -> None:
        super().__init__("support.warm", FIXED)

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
        """Start `python WORDS`: a script and its arguments, or `-m`, a module and its arguments.
        `environ` is added to that of `clean_environ`. Where `strict`, FutureWarnings are errors."""
        output = tempfile.TemporaryDirectory()
        request = {
            "words": list(map(str, words)),
            "cwd": str(cwd or Path.cwd()),
            "environ": clean_environ(**{**FIXED, **(environ or {})}),
            "output": output.name,
            "strict": strict,
        }
        return Program(self, self.ask("start", request), request["words"], output)


@dataclass
class Program:
    """A program that was started."""

    warm: Warm
    pid: int
    words: list[str]
    output: tempfile.TemporaryDirectory[str] = field(repr=False)

    def wait(self) -> subprocess.CompletedProcess[str]:
        """How it ended."""
        status = self.warm.ask("ended", self.pid)
        said = {name: (Path(self.output.name) / name).read_text() for name in ("stdout", "stderr")}
        self.output.cleanup()
        return subprocess.CompletedProcess(self.words, status, **said)


def serve() -> None:
    """Answer requests until there are no more."""
    for line in sys.stdin:
        ((verb, given),) = json.loads(line).items()
        if verb == "start":
            answer = os.fork()
            if answer == 0:
                end(status_of(given))
        else:
            answer = os.waitstatus_to_exitcode(os.waitpid(given, 0)[1])
        print(json.dumps(answer), flush=True)


def status_of(request: dict[str, Any]) -> int:
    """The exit status of the program, run in this process."""
    try:
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


def become(request: dict[str, Any]) -> None:
    """Run the program."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        path = Path(request["output"]) / name
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdin = open(0)  # noqa: SIM115  # the one before has requests in its buffer
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["cwd"])
    if request["strict"]:
        warnings.simplefilter("error", FutureWarning)
    words = request["words"]
    more = [path for path in os.environ["PYTHONPATH"].split(":") if path not in sys.path]
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path[0:1] = [os.getcwd(), *more]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path[0:1] = [str(Path(words[0]).resolve().parent), *more]
        runpy.run_path(words[0], run_name="__main__")


def end(status: int) -> NoReturn:
    """End as Python does, but without taking torch apart, which takes a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    # What nearly every program with torch imports, torch._dynamo when it makes an optimizer.
    import torch._dynamo
    import torch.utils.tensorboard  # noqa: F401

    gc.freeze()  # a collection in a fork would copy what it looks at
    serve()
    os._exit(0)  # taking torch apart takes seconds
