"""Copy the code that a job runs into its run directory: this package's job side as `src`, and the
user's code as `code`. Later edits of either do not affect the job."""

from __future__ import annotations

import functools
import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_amp.errors import ConfigError
from hpc_amp.jobs.places import CAMPAIGNS, RUNS

if TYPE_CHECKING:
    from hpc_amp.jobs.plan import Plan

PACKAGE = Path(__file__).resolve().parents[1]
NEVER_COPIED = ("__pycache__", "*.pyc", ".git", ".venv", "venv", "node_modules", "_share")
"""Patterns of file names that are not copied."""
_RESULTS = (str(RUNS), *CAMPAIGNS, "functions")
"""Names of folders that are not copied either, unless they have Python files: those are code."""
MAIN = '''"""`python src ...` is `python -m hpc_amp.distributed.exec ...` with this snapshot."""

import sys

if sys.version_info < (3, 10):
    sys.exit("hpc-amp: this is Python %d.%d, and hpc-amp needs 3.10" % sys.version_info[:2])

from hpc_amp.distributed.exec import main

main(sys.argv[1:])
'''
"""The content of `src/__main__.py`."""
JOB_SIDE = (
    *("__init__.py", "errors.py", "files.py", "finding.py", "registry.py", "py.typed", "host"),
    *("preflight", "distributed", "amp", "train", "tasks", "gan", "trackers", "data", "models"),
    *(f"config/{name}.py" for name in ("__init__", "schema", "values", "units", "keys", "tree")),
)
"""The files and folders of the package that run on the nodes."""
_CODE_LIMIT = 100 * 2**20


def copy_package(folder: Path, plan: Plan) -> None:
    """Copy the job side of hpc-amp and the host code of a plan to `src` in `folder`. The image
    therefore does not need hpc-amp. Raises OSError."""
    write_package(folder / "src", package_files(plan))


def package_files(plan: Plan) -> dict[str, bytes]:
    """The content of `src`, by the paths of the files in it. Raises OSError."""
    return _job_side() | {name: text.encode() for name, text in texts([plan]).items()}


@functools.cache
def _job_side() -> dict[str, bytes]:
    """The files of `JOB_SIDE`. A command that submits many runs reads them once."""
    found = {}
    ignored = shutil.ignore_patterns(*NEVER_COPIED)
    for name in JOB_SIDE:
        source = PACKAGE / name
        if source.is_file():
            found[f"hpc_amp/{name}"] = source.read_bytes()
        for path, folders, files in os.walk(source):
            left_out = ignored(path, [*folders, *files])
            folders[:] = [one for one in folders if one not in left_out]
            for file in set(files) - left_out:
                inside = path.removeprefix(f"{PACKAGE}/")
                found[f"hpc_amp/{inside}/{file}"] = Path(path, file).read_bytes()
    return found


def write_package(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files by their paths in `folder`. Raises OSError."""
    for parent in {os.path.dirname(name) for name in files}:
        os.makedirs(folder / parent, exist_ok=True)
    for name, content in files.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content)


def texts(plans: Iterable[Plan]) -> dict[str, str]:
    """The generated files of `src`, as texts by their paths in it: `__main__.py`, and the host code
    of each plan's scheduler, launcher and container runtime."""
    found = {"__main__.py": MAIN}
    for plan in plans:
        host = "hpc_amp/host"
        found[f"{host}/schedulers/{plan.scheduler.name}.sh"] = plan.scheduler.host_code()
        found[f"{host}/launchers/{plan.launcher.name}.sh"] = plan.launcher.host_code()
        found[f"{host}/containers/{plan.container.name}.sh"] = plan.container.host_code()
    return {name: text for name, text in found.items() if text}


def host_folder(run_dir: Path) -> Path:
    """The folder of the bash files that a run's launch script sources."""
    return run_dir / "src" / "hpc_amp" / "host"


def is_left_out(path: str) -> bool:
    """Whether a file or folder in the user's code is not copied: caches, environments, results, and
    what is no file, such as a socket."""
    name = os.path.basename(path)
    if any(fnmatch(name, pattern) for pattern in NEVER_COPIED):
        return True
    mode = os.lstat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
        return True
    if name not in _RESULTS or not os.path.isdir(path):
        return False
    try:
        return not any(file.endswith(".py") for file in os.listdir(path))
    except OSError:  # nobody can copy it
        return True


def copy_code(source: Path, folder: Path, results: Path) -> None:
    """Copy the user's code from `source` to `code` in `folder`. `results` is the folder of all
    runs; it is left out, because it may lie in `source`. Raises ConfigError if the code is too
    large (`refuse_large`), or would be copied into itself."""
    if folder.is_relative_to(source) and source.is_relative_to(results):
        raise ConfigError(
            f"code: {source} contains {folder}, into which it would be copied",
            hint="set runs_dir to a folder of its own, such as runs",
        )
    refuse_large(source, results)

    def left_out(parent: str, names: list[str]) -> set[str]:
        own = {results.name} if Path(parent) == results.parent else set()
        return {*own, *(name for name in names if is_left_out(os.path.join(parent, name)))}

    shutil.copytree(source, folder / "code", ignore=left_out, symlinks=True)


def refuse_large(source: Path, results: Path) -> None:
    """Raise ConfigError if the user's code, without `results`, has more than 100 MiB. Such a folder
    probably contains data."""
    total = 0
    for folder, folders, files in os.walk(source):
        folders[:] = [
            name
            for name in folders
            if not is_left_out(os.path.join(folder, name)) and Path(folder, name) != results
        ]
        total += sum(os.lstat(os.path.join(folder, name)).st_size for name in files)
        if total > _CODE_LIMIT:
            raise ConfigError(
                f"code: {source} holds more than {_CODE_LIMIT >> 20} MiB",
                hint="it is copied for every run; keep data and results elsewhere",
            )
