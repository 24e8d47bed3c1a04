"""Check before a submission that the job's image is for the architecture of the nodes, and that its
Python can run the job.

The image is started once, which takes about a second: only the job's own Python knows where it
finds its packages. The file images/<hash> in the user's state folder then records that the image
needs no further look. The hash is of the image, by its path, inode, size and time of change, and of
all that is started in it.

Neither an unsuitable image is recorded, nor one that did not start. So a job is only refused after
a look at the image as it is now, and an old, lost or damaged record cannot refuse one. If the image
changed without a trace, such as packages deep in a folder, it is not looked at again before its
record expires; the job's preflight finds what is missing.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import subprocess
import time
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Literal

from hpc_amp.clients import run_in_time
from hpc_amp.config.bind import parse_bind
from hpc_amp.containers import Container
from hpc_amp.containers.base import environment_of
from hpc_amp.containers.image import go_name, machine
from hpc_amp.containers.ngc import OLDEST_PYTHON, OLDEST_TORCH, version
from hpc_amp.errors import HpcAmpError
from hpc_amp.files import write_atomically
from hpc_amp.finding import Finding, Findings
from hpc_amp.jobs.known import hash_of, state_folder
from hpc_amp.jobs.plan import Plan
from hpc_amp.lint.shell import read_shell
from hpc_amp.schedulers.base import Client

LOOK_SECONDS = 5.0
"""How long a submission waits for an image. It continues without an answer."""
_VALID = 30 * 86400
"""Seconds after which an image is looked at again."""

_MARK = "hpc-amp-image "
# Python is started a second time, as for a rank: with the variables that the job sets inside.
_ENTER = """\
import json, os, sys
os.environ.update(json.loads(sys.argv[1]))
os.execv(sys.executable, [sys.executable, "-B", "-c", sys.argv[2]])
"""
# torch is not imported, which would take seconds.
_LOOK = f"""\
import importlib.util, json, os, platform, re, sys
sys.path = [folder for folder in sys.path if folder]
found = importlib.util.find_spec("torch")
torch = None
if found is not None and found.origin:
    torch = ""
    path = os.path.join(os.path.dirname(found.origin), "version.py")
    if os.path.exists(path):
        match = re.search("^__version__ = ['\\"]([^'\\"]+)", open(path).read(), re.MULTILINE)
        torch = match.group(1) if match else ""
facts = {{"python": platform.python_version(), "prefix": sys.prefix, "torch": torch}}
print("{_MARK}" + json.dumps(facts))
"""


@dataclass(frozen=True, slots=True)
class _Start:
    """What is started in an image."""

    runtime: type[Container]
    image: str
    python: str
    binds: tuple[str, ...]
    args: tuple[str, ...]
    variables: str
    """The variables for Python that the job sets in the container, as JSON."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """What Python in an image says about itself."""

    python: str | None
    """Its version; None if there is no such program."""
    prefix: str
    """The folder in which it is installed."""
    torch: str | None
    """Its version of torch, without importing it. None if it has none, empty if the version is
    unknown."""


def check_image(plan: Plan, client: Client) -> Findings:
    """Yield a finding if the job's image is for another architecture than all nodes of the cluster,
    if its Python is missing or too old, or if the job trains and torch is missing or too old.

    Nothing is yielded for what this machine cannot know. The severity is `warning` if the job may
    find another Python or other packages than this machine.
    """
    if not plan.container.uses_image:
        return
    start, missing = _start_of(plan)
    trains = plan.job.train is not None
    record = _record_of(start, plan.site.name, trains=trains)
    if record is not None and _is_valid(record):
        return
    try:
        image = plan.container.read_image(start.image)
        architecture = image.architecture if image is not None else None
        wrong = _wrong_architecture(plan, architecture, client)
        if wrong:
            what = f"the image {start.image} {wrong}"
            fix = "get an image for the nodes: hpc-amp container pull --arch"
            yield Finding("img.arch", "error", what, "the job would end at its start", fix)
            return
        runs_here = architecture in (None, machine())
        answer = _ask(start) if runs_here else "silent"
    except HpcAmpError:
        return  # this machine does not have the container runtime
    if answer == "failed":
        return
    problem = _problem(start, answer, trains=trains) if answer != "silent" else ""
    if answer == "silent" or not problem:
        if record is not None:
            _write(record, start.image)
        return
    by_name = not plan.container.is_path(start.image)  # the nodes may have another one
    if by_name or missing or _from_outside(start, answer) or _setup_may_matter(plan, answer):
        why = "the job ends at its start, unless its setup or its nodes provide it"
        yield Finding("img.python", "warning", problem, why)
        return
    why = "the job would end at its start"
    fix = "use another image (hpc-amp container list), or set container.python to another Python"
    yield Finding("img.python", "error", problem, why, fix)


def _wrong_architecture(plan: Plan, architecture: str | None, client: Client) -> str:
    """How the architecture of an image differs from those of all nodes, whichever the job gets.
    Empty if it does not, or one of them is unknown. Nodes can also run 32-bit programs."""
    if architecture in (None, "386", "arm"):
        return ""
    nodes = {machine()}
    if not plan.scheduler.one_machine:
        anywhere = replace(plan.job, resources=replace(plan.job.resources, queue=None))
        nodes = {go_name(name) for name in plan.scheduler.node_architectures(anywhere, client)}
    if not nodes or architecture in nodes:
        return ""
    return f"is for {architecture}, and the nodes are {', '.join(sorted(nodes))}"


def _problem(start: _Start, answer: _Answer, *, trains: bool) -> str:
    """What prevents the job from running; empty if nothing does."""
    if answer.python is None:
        return f"the image {start.image} has no {start.python}"
    which = f"{start.python} in the image {start.image}"
    if version(answer.python)[:2] < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        return f"{which} is Python {answer.python}, and hpc-amp needs {oldest} or newer"
    if trains and answer.torch is None:
        return f"{which} has no torch, which training needs"
    if trains and answer.torch and version(answer.torch)[:2] < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        return f"{which} has torch {answer.torch}, and training needs {oldest} or newer"
    return ""


# ---- what is started -----------------------------------------------------------------------------


def _start_of(plan: Plan) -> tuple[_Start, list[str]]:
    """What the job starts in its image, and the binds whose source is not on this machine. A folder
    that hpc-amp binds itself, such as the working directory, is left out if Python is not told to
    look there. So jobs in several folders share a record."""
    env = {**plan.site.env, **plan.job.container.env}
    variables = {name: value for name, value in env.items() if name.startswith("PYTHON")}
    named = " ".join([plan.python, *variables.values()])
    declared = {*plan.site.bind, *plan.job.container.bind}
    binds, missing = [], []
    for text in plan.binds:
        source = Path(text.partition(":")[0])
        if text not in declared and str(source) not in named:
            continue
        if source.exists():
            binds.append(text)
        elif not plan.run_dir.is_relative_to(source):  # else it is the folder of a new campaign
            missing.append(text)
    start = _Start(
        runtime=type(plan.container),
        image=str(plan.job.container.image),
        python=plan.python,
        binds=tuple(binds),
        args=(*plan.site.container_args, *plan.job.container.args),
        variables=json.dumps({"PYTHONNOUSERSITE": "1", **variables}, sort_keys=True),
    )
    return start, missing


def _from_outside(start: _Start, answer: _Answer) -> bool:
    """Whether the Python is from a bind: the nodes may have another folder at this path."""
    python = Path(answer.prefix or start.python)
    binds = filter(None, map(parse_bind, start.binds))
    return any(python.is_relative_to(bind.destination) for bind in binds)


def _setup_may_matter(plan: Plan, answer: _Answer) -> bool:
    """Whether the lines of `setup` may change what Python finds in the container. Variables that
    neither Python nor the container runtime reads do not. Modules may only provide a Python that
    the image does not have, by a bind."""
    harmless = ["export"] if answer.python is None else ["module", "ml", "export"]
    programs = [name.upper().replace("-", "_") for name in plan.container.binaries]
    read = ("PYTHON", *(plan.container.prefixes or programs))
    for command in read_shell(f"{plan.site.setup}\n{plan.job.resources.setup}").commands:
        if command.program and command.program[0].text not in harmless:
            return True
        names = {name for name, _ in command.assignments} | command.exported
        if any(name == "PATH" or name.startswith(read) for name in names):
            return True
    return False


# ---- the look ------------------------------------------------------------------------------------


@functools.cache  # the runs of a campaign mostly have one image
def _ask(start: _Start) -> _Answer | Literal["silent", "failed"]:
    """Start the image, and ask its Python. Without an answer, `silent` if the time is over, and
    `failed` if the container does not start here. Raises HpcAmpError if this machine cannot run the
    image."""
    container = start.runtime()
    until = time.monotonic() + LOOK_SECONDS
    try:
        words = container.words_here(
            start.image, binds=start.binds, args=start.args, seconds=LOOK_SECONDS
        )
    except HpcAmpError:
        if time.monotonic() < until:
            raise
        return "silent"
    command = [*words, start.python, "-B", "-c", _ENTER, start.variables, _LOOK]
    environ = {**environment_of(container, os.environ), "PYTHONNOUSERSITE": "1"}
    try:
        status, output, errors = run_in_time(
            command, max(0.0, until - time.monotonic()), environ=environ, folder="/"
        )
    except OSError:
        return "failed"
    except subprocess.TimeoutExpired:
        return "silent"
    for line in output.splitlines():
        if line.startswith(_MARK):
            return _Answer(**json.loads(line[len(_MARK) :]))
    said, _ = container.explain(f"{errors}\n{output}")
    if status != 0 and _names_missing(said, start.python):
        return _Answer(python=None, prefix="", torch=None)
    return "failed"


def _names_missing(said: str, program: str) -> bool:
    """Whether the last message of a container runtime says that the image has no such program. A
    library that the program needs is not meant, nor a path that contains its name."""
    word = rf"(?<![\w./-]){re.escape(program)}(?![\w./-])"
    missing = re.search(r"not found|no such file", said, re.IGNORECASE)
    return bool(missing and re.search(word, said)) and "shared librar" not in said


# ---- the record ----------------------------------------------------------------------------------


def _record_of(start: _Start, site: str, *, trains: bool) -> Path | None:
    """The path of the record. None if there is no state folder, or the image is gone."""
    state = state_folder()
    if state is None:
        return None
    identity: list[object] = []
    if start.runtime().is_path(start.image):
        path = os.path.realpath(start.image)
        try:
            stat = os.stat(path)
        except OSError:
            return None
        identity = [path, stat.st_ino, stat.st_size, stat.st_mtime_ns]
    _, *words = astuple(start)
    content = json.dumps([start.runtime.name, *words, identity, site, trains, _ENTER, _LOOK])
    return state / "images" / hash_of(content)


def _is_valid(record: Path) -> bool:
    try:
        return time.time() - record.stat().st_mtime < _VALID
    except OSError:
        return False


def _write(record: Path, image: str) -> None:
    """Write a record, and remove those that have expired. Does nothing if the state folder cannot
    be written."""
    with contextlib.suppress(OSError):
        record.parent.mkdir(parents=True, exist_ok=True)
        for path in record.parent.iterdir():
            if not _is_valid(path):
                path.unlink(missing_ok=True)
        write_atomically(record, os.fsencode(f"{image}\n"))
