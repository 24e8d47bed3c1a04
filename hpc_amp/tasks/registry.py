"""Tasks by name or by import path, and the keys that each adds to `train`. Never imports torch.

`train.task` is a name of the table below, an entry point of the group `hpc_amp.tasks`, or
`package.module:Class`. In each case there is a class `package.module:Class` that extends
`hpc_amp.tasks.base.Task`; only a job imports it. Its configuration is

    package.config:ClassConfig

a dataclass that extends `hpc_amp.config.schema.Train` and needs no torch: the machine that submits
imports that module. A task without such a class has the keys of `Train` alone.
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
from hpc_amp.registry import Registry

TASKS: Registry[Any] = Registry(
    "hpc_amp.tasks",
    "hpc_amp.tasks.base:Task",
    {
        "classification": "hpc_amp.tasks.classification.task:Classification",
        "coco_funit": "hpc_amp.tasks.coco_funit.task:CocoFunit",
        "dcgan": "hpc_amp.tasks.dcgan.task:Dcgan",
        "funit": "hpc_amp.tasks.funit.task:Funit",
        "munit": "hpc_amp.tasks.munit.task:Munit",
        "pix2pixhd": "hpc_amp.tasks.pix2pixhd.task:Pix2pixHd",
        "spade": "hpc_amp.tasks.spade.task:Spade",
        "unit": "hpc_amp.tasks.unit.task:Unit",
    },
)
PLACE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
"""An import path."""
_SHARED = ("model", "gan", "label_smoothing")
"""Keys of one task that an older hpc-amp wrote into every `job.json`, whatever the task."""


class TaskError(ValueError):
    """A task that is not there or cannot be used. The message and the hint are for the user."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.message = message
        self.hint = hint


def task_place(name: str) -> str:
    """`package.module:Class` of a task, which is given by its name or in this form. Raises
    TaskError where no task has the name."""
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
    """The configuration of a task: `Train`, or a class that extends it. `code` is the folder of the
    user's own modules. Raises TaskError."""
    return _config_class(task_place(name), None if code is None else code.resolve())


@functools.cache
def _config_class(place: str, code: Path | None) -> type[Any]:
    module, _, task = place.partition(":")
    package = module.rpartition(".")[0]
    with _importable(module, code):
        _look_for(place, code)
        if not package or importlib.util.find_spec(f"{package}.config") is None:
            return Train
        config = _import(f"{package}.config")
    found = getattr(config, f"{task}Config", None)
    if found is None:
        return Train
    _check(found, f"{package}.config:{task}Config")
    return found  # type: ignore[no-any-return]


def job_from_plain(plain: dict[str, Any], code: Path | None = None) -> Job:
    """The job of a `job.json`, whose training has the keys of its task. `code` is the run's copy of
    the user's modules. Raises TaskError, and TypeError for a key that the task does not have."""
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
    """The modules in `code` come first meanwhile."""
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
    """Forget a module of the same name in another folder: a process may submit several jobs."""
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


def _look_for(place: str, code: Path | None) -> None:
    """Raise TaskError where there is no such module, or no such class in it. The module itself is
    read, not imported: it needs torch."""
    module, _, task = place.partition(":")
    with _told(module):
        try:
            spec = importlib.util.find_spec(module)
        except ModuleNotFoundError as error:
            # A package above it that is not there; any other module is missing in that package.
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
    with _told(module):
        names = set(_names_in(ast.parse(Path(spec.origin).read_bytes(), spec.origin)))
    if task not in names and "*" not in names:
        raise TaskError(f"{spec.origin} has no class {task}")


def _names_in(tree: ast.Module) -> Iterator[str]:
    """What a module may have at its top level."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _import(module: str) -> Any:
    with _told(module):
        return importlib.import_module(module)


@contextlib.contextmanager
def _told(module: str) -> Iterator[None]:
    """Raise TaskError for whatever the user's module raises when it is imported."""
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
    """Raise TaskError for a configuration whose keys a job file cannot have."""
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
