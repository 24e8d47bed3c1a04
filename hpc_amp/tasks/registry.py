"""Tasks by name or import path, and the keys that each of them adds to `train`.

`train.task` is a name in the table below, an entry point of the group `hpc_amp.tasks`, or an import
path `package.module:Class`. In each case, it names a class `package.module:Class` that extends
`hpc_amp.tasks.base.Task`, which only a job imports. Its configuration is the class

    package.config:ClassConfig

a dataclass that extends `hpc_amp.config.schema.Train`. The machine that submits imports its module,
so it must not need torch. A task without such a class only has the keys of `Train`. This module
does not import torch either.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpc_amp.config.keys import keys_of, unreadable
from hpc_amp.config.schema import Job, Train, as_job, from_plain, job_class
from hpc_amp.errors import InputError
from hpc_amp.registry import Registry

TASKS: Registry[Any] = Registry(
    "hpc_amp.tasks",
    "hpc_amp.tasks.base:Task",
    {
        "classification": "hpc_amp.tasks.classification.task:Classification",
        "coco_funit": "hpc_amp.tasks.coco_funit.task:CocoFunit",
        "dcgan": "hpc_amp.tasks.dcgan.task:Dcgan",
        "fs_vid2vid": "hpc_amp.tasks.fs_vid2vid.task:FsVid2vid",
        "funit": "hpc_amp.tasks.funit.task:Funit",
        "munit": "hpc_amp.tasks.munit.task:Munit",
        "pix2pixhd": "hpc_amp.tasks.pix2pixhd.task:Pix2pixHd",
        "spade": "hpc_amp.tasks.spade.task:Spade",
        "unit": "hpc_amp.tasks.unit.task:Unit",
        "vid2vid": "hpc_amp.tasks.vid2vid.task:Vid2vid",
        "wc_vid2vid": "hpc_amp.tasks.wc_vid2vid.task:WcVid2vid",
    },
)
PLACE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
"""An import path, `package.module:Class`."""
_SHARED = ("model", "gan", "label_smoothing")
"""Keys of single tasks that older versions of hpc-amp wrote into every `job.json`."""


class TaskError(InputError):
    """A task does not exist or cannot be used."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)


def task_place(name: str) -> str:
    """The import path `package.module:Class` of a task, given by its name or import path. Raises
    TaskError if no task has the name."""
    if PLACE.fullmatch(name):
        return name
    try:
        return TASKS.place(name)
    except KeyError:
        known = ", ".join(TASKS.names())
        raise TaskError(
            f"{name!r} is not one of {known}, and not package.module:Class of a task of your own"
        ) from None


def config_class(name: str, code: Path | None = None) -> type[Any]:
    """The configuration of a task: `Train`, or a class that extends it.

    `name`: the name or import path of the task. `code`: the folder of the user's own modules.
    Raises TaskError.
    """
    return _config_class(task_place(name), None if code is None else code.resolve())


@functools.cache
def _config_class(place: str, code: Path | None) -> type[Any]:
    """`config_class` for an import path, with its result kept."""
    module, _, task = place.partition(":")
    package = module.rpartition(".")[0]
    foreign = place not in map(TASKS.place, TASKS.own())  # only these can be wrong
    with _importable(module, code):
        if foreign:
            _check_exists(place, code)
        if not package or importlib.util.find_spec(f"{package}.config") is None:
            return Train
        with _as_task_errors(f"{package}.config"):
            config = importlib.import_module(f"{package}.config")
    found = getattr(config, f"{task}Config", None)
    if found is None:
        return Train
    if foreign:
        _check(found, f"{package}.config:{task}Config")
    return found  # type: ignore[no-any-return]


def job_from_plain(plain: dict[str, Any], code: Path | None = None) -> Job:
    """The job that a `job.json` describes, with the keys of its task in `train`.

    `plain`: its content. `code`: the run's copy of the user's modules. Raises TaskError, and
    TypeError for a key that the task does not have.
    """
    train = plain.get("train")
    if train is None:
        return from_plain(Job, plain)
    config = config_class(train.get("task", Train().task), code)
    known = keys_of(config)
    train = {name: value for name, value in train.items() if name in known or name not in _SHARED}
    return as_job(from_plain(job_class(config), {**plain, "train": train}))


# ---- importing a configuration -------------------------------------------------------------------


@contextlib.contextmanager
def _importable(module: str, code: Path | None) -> Iterator[None]:
    """In this block, modules in `code` precede all others."""
    if code is None:
        yield
        return
    _forget_other(module.partition(".")[0], code)
    sys.path.insert(0, str(code))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(code))


def _forget_other(name: str, code: Path) -> None:
    """Forget an imported module of this name from another folder, because a process may submit
    several jobs."""
    loaded = sys.modules.get(name)
    here = (code / name).is_dir() or (code / f"{name}.py").is_file()
    if loaded is None or not here:
        return
    file = getattr(loaded, "__file__", None)
    places = [file] if file else list(getattr(loaded, "__path__", []))
    if any(Path(place).resolve().is_relative_to(code) for place in places):
        return
    for other in list(sys.modules):
        if other == name or other.startswith(f"{name}."):
            del sys.modules[other]


def _check_exists(place: str, code: Path | None) -> None:
    """Raise TaskError if the module or the class in it does not exist. The module is parsed and not
    imported, because it needs torch."""
    module, _, task = place.partition(":")
    with _as_task_errors(module):
        try:
            spec = importlib.util.find_spec(module)
        except ModuleNotFoundError as error:
            # If a package above the module is missing, so is the module. Any other missing module
            # is an error in that package.
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise
            spec = None
    if spec is None or spec.origin is None:
        where = f"in {code}, nor among" if code is not None else "among"
        raise TaskError(
            f"there is no module {module} {where} the installed packages",
            None if code is not None else "name the folder of your own modules in code",
        )
    if not spec.origin.endswith(".py"):
        return
    with _as_task_errors(module):
        names = set(_names_in(ast.parse(Path(spec.origin).read_bytes(), spec.origin)))
    if task not in names and "*" not in names:
        raise TaskError(f"{spec.origin} has no class {task}")


def _names_in(tree: ast.Module) -> Iterator[str]:
    """The names that a module may define at its top level."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


@contextlib.contextmanager
def _as_task_errors(module: str) -> Iterator[None]:
    """Replace any error of a user's module by a TaskError."""
    try:
        yield
    except TaskError:
        raise
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "torchvision"):
            raise TaskError(f"{module} cannot be imported: {error}") from error
        raise TaskError(
            f"{module} imports {error.name}, which this Python does not have",
            "keep it out of the task's config.py and of the __init__.py beside it: they are "
            "imported where the job is submitted",
        ) from error
    except Exception as error:
        text = " ".join(str(error).split())
        raise TaskError(f"{module} cannot be imported: {type(error).__name__}: {text}") from error


def _check(found: object, place: str) -> None:
    """Raise TaskError if a class cannot be the configuration of a task."""
    if not (isinstance(found, type) and issubclass(found, Train)):
        raise TaskError(f"{place} does not extend hpc_amp.config.schema.Train")
    if "__dataclass_fields__" not in vars(found):
        raise TaskError(
            f"{place} is not a dataclass", "write @dataclass(kw_only=True, frozen=True) above it"
        )
    problem = unreadable(found, "train")
    if problem is not None:
        raise TaskError(f"{place}: {problem}")
    for key in found.UNUSED:
        if key not in keys_of(Train):
            raise TaskError(f"{place}: UNUSED names {key}, which is not a key of Train")
