"""What a job runs: a copy of this package as `src`, and one of the user's `code`. Nothing that
changes while the job waits can change it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_amp.errors import ConfigError

if TYPE_CHECKING:
    from hpc_amp.jobs.plan import Plan

PACKAGE = Path(__file__).resolve().parents[1]
NEVER_COPIED = (
    *("__pycache__", "*.pyc", ".git", ".venv", "venv", "node_modules", "_share"),
    *("runs", "sweeps", "studies", "functions"),
)
"""Patterns of names that no run needs."""
MAIN = '''"""`python src ...` is `python -m hpc_amp.distributed.exec ...` with this snapshot."""

import sys

if sys.version_info < (3, 10):
    sys.exit("hpc-amp: this is Python %d.%d, and hpc-amp needs 3.10" % sys.version_info[:2])

from hpc_amp.distributed.exec import main

main(sys.argv[1:])
'''
"""`src/__main__.py`."""
JOB_SIDE = (
    *("__init__.py", "errors.py", "registry.py", "py.typed", "host", "preflight", "distributed"),
    *("amp", "train", "tasks", "gan", "trackers", "data", "models"),
    *(f"config/{name}.py" for name in ("__init__", "schema", "values", "units", "keys", "tree")),
)
"""What of the package runs on the nodes."""
_CODE_LIMIT = 100 * 2**20


def copy_package(folder: Path, plan: Plan) -> None:
    """The job side of hpc-amp and the host code of a plan as `src` in a folder: nothing of it has
    to be in the image."""
    for name in JOB_SIDE:
        source, copy = PACKAGE / name, folder / "src" / "hpc_amp" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns(*NEVER_COPIED))
        else:
            shutil.copy(source, copy)
    for name, text in texts([plan]).items():
        copy = folder / "src" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text)


def texts(plans: Iterable[Plan]) -> dict[str, str]:
    """What else stands in `src`, by its path in there: the program that a rank begins with, and the
    host code of each plan's scheduler, launcher and container."""
    found = {"__main__.py": MAIN}
    for plan in plans:
        host = "hpc_amp/host"
        found[f"{host}/schedulers/{plan.scheduler.name}.sh"] = plan.scheduler.host_code()
        found[f"{host}/launchers/{plan.launcher.name}.sh"] = plan.launcher.host_code()
        found[f"{host}/containers/{plan.container.name}.sh"] = plan.container.host_code()
    return {name: text for name, text in found.items() if text}


def host_folder(run_dir: Path) -> Path:
    """The files of a run that its launch script is made of, beside what stands in it."""
    return run_dir / "src" / "hpc_amp" / "host"


def copy_code(source: Path, folder: Path, results: Path) -> None:
    """The user's code as `code` in a folder, without `results`, where all such copies are made: it
    may lie in what is copied. Raises ConfigError as `refuse_large` does."""
    refuse_large(source, results)
    ignore = shutil.ignore_patterns(*NEVER_COPIED)

    def ignore_results(parent: str, names: list[str]) -> set[str]:
        own = {results.name} if Path(parent) == results.parent else set()
        return {*ignore(parent, names), *own}

    shutil.copytree(source, folder / "code", ignore=ignore_results, symlinks=True)


def refuse_large(source: Path, results: Path) -> None:
    """Raises ConfigError where the user's code, `results` not counted, is so large that nobody can
    have meant it."""
    total = 0
    for folder, folders, files in os.walk(source):
        folders[:] = [
            name for name in folders if name not in NEVER_COPIED and Path(folder, name) != results
        ]
        total += sum(os.lstat(os.path.join(folder, name)).st_size for name in files)
        if total > _CODE_LIMIT:
            raise ConfigError(
                f"code: {source} holds more than {_CODE_LIMIT >> 20} MiB",
                hint="it is copied for every run; keep data and results elsewhere",
            )
