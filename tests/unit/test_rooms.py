"""Nobody outside of its room names a scheduler, a container runtime or a task."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from support.environment import REPOSITORY

from hpc_amp.containers import CONTAINERS
from hpc_amp.schedulers import SCHEDULERS
from hpc_amp.tasks.registry import TASKS

PACKAGE = REPOSITORY / "hpc_amp"
ROOMS = [
    *(PACKAGE / "schedulers" / name for name in SCHEDULERS.names()),
    *(PACKAGE / "containers" / name for name in CONTAINERS.names()),
    # What belongs to one of them, but is found through another registry.
    *(PACKAGE / "launchers" / name for name in ("srun.py", "srun.sh")),
]
NAMERS = {
    "schedulers/__init__.py": "the registry",
    "containers/__init__.py": "the registry",
    "lint/rules_": "rules about one of them",
    "explain/": "known failures of one of them",
    "cli/container.py": "`container def` and `container build`, which one runtime alone has",
    "draft/": "what scripts of other hands start",
    "lint/starts.py": "the programs that a user's script may start",
    "distributed/environment.py": "the folder of the host's libraries inside an image",
    "preflight/node_checks.py": "the same folder",
    "containers/inspect.py": "the same folder",
    "preflight/mpi_fit.py": "how the MPI of an image fits the one that starts the ranks",
    "launchers/mpirun.sh": "variables that no rank is to inherit from another launcher",
    "distributed/world.py": "the variables from which a rank knows its place, a line a launcher",
}
"""Files outside of the rooms that may name them, and why."""
# `local`, `auto` and `none` are words of every day.
WORDS = sorted(
    {*SCHEDULERS.names(), *CONTAINERS.names(), "singularity", "enroot"} - {"local", "auto", "none"}
)
NAME = re.compile(rf"(?<![a-z])({'|'.join(WORDS)})(?![a-z])", re.IGNORECASE)


def python_words(text: str) -> Iterator[tuple[int, str]]:
    """Names and texts of a module with their lines, without comments and docstrings."""
    tree = ast.parse(text)
    expressions = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    documentation = {id(value) for value in expressions if isinstance(value, ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in documentation:
                yield node.lineno, node.value
        elif isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield node.lineno, ast.unparse(node)


def bash_words(text: str) -> Iterator[tuple[int, str]]:
    """Lines of a script without their comments."""
    for number, line in enumerate(text.splitlines(), 1):
        yield number, re.sub(r"(^|\s)#.*", "", line)


def in_its_room(path: Path) -> bool:
    return any(path == room or room in path.parents for room in ROOMS)


def may_name(path: Path) -> bool:
    place = str(path.relative_to(PACKAGE)) if path.is_relative_to(PACKAGE) else ""
    return in_its_room(path) or any(place.startswith(name) for name in NAMERS)


def test_no_name_stands_outside_of_its_room() -> None:
    scripts = [*PACKAGE.rglob("*.sh"), *(REPOSITORY / "jobs").rglob("*.in")]
    found = []
    for path in sorted([*PACKAGE.rglob("*.py"), *scripts]):
        if may_name(path):
            continue
        read = python_words if path.suffix == ".py" else bash_words
        found += [
            f"{path.relative_to(REPOSITORY)}:{line}: {text[:80]}"
            for line, text in read(path.read_text())
            if NAME.search(text)
        ]
    assert not found, "\n".join(found)


def test_every_namer_is_needed() -> None:
    for place in NAMERS:
        files = [
            path for path in PACKAGE.rglob("*") if str(path.relative_to(PACKAGE)).startswith(place)
        ]
        assert any(NAME.search(path.read_text()) for path in files if path.is_file()), place


def test_the_search_finds_names() -> None:
    """The test above can fail."""
    code = 'def on_slurm():\n    "slurm"\n    return kind == "PBS"\n'
    assert [line for line, text in python_words(code) if NAME.search(text)] == [1, 3]
    assert [text for _, text in bash_words("x=1 # slurm\n$SLURM_ID\n") if NAME.search(text)] == [
        "$SLURM_ID"
    ]


# -- tasks ----------------------------------------------------------------------------------------

# Names of tasks are words of other things too (`unit`, the layer `Spade`), so what counts is the
# name as a whole text, or that of the folder.
TASK_NAME = "|".join(TASKS.names())
TASK = re.compile(rf"({TASK_NAME})|.*hpc_amp\.tasks\.({TASK_NAME})\b.*", re.DOTALL)
TASK_NAMERS = {
    "tasks/registry.py": "the registry",
    "config/schema.py": "the task of a job that names none",
    "models/build.py": "the models of the classification",
    "tasks/coco_funit/": "COCO-FUNIT is a FUNIT with another encoder of styles",
    "tasks/wc_vid2vid/": "its first frames may come from a trained network of SPADE",
}
"""Files outside of a task's folder that may name it, and why."""


def task_names(text: str) -> list[tuple[int, str]]:
    """Lines and texts of a module that name a task."""
    tree = ast.parse(text)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value
        elif isinstance(node, ast.Import | ast.ImportFrom):
            words = ast.unparse(node)
        else:
            continue
        if TASK.fullmatch(words):
            found.append((node.lineno, words))
    return found


def test_adding_a_task_touches_its_folder_and_the_registry() -> None:
    """A task from another package, with no file touched, is in test_gan_own.py."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        place = str(path.relative_to(PACKAGE))
        own = path.parts[-2] if path.parent.parent == PACKAGE / "tasks" else None
        names = [(line, name) for line, name in task_names(path.read_text())]
        if own is not None:
            names = [(line, name) for line, name in names if not in_own(name, own)]
        if names:
            found[place] = names
    namers = {place: [name for name in TASK_NAMERS if place.startswith(name)] for place in found}
    assert not {place: found[place] for place, of in namers.items() if not of}
    assert {name for of in namers.values() for name in of} == set(TASK_NAMERS), "each is needed"


def in_own(words: str, own: str) -> bool:
    """Whether a text names a task in that task's own folder."""
    return words == own or re.search(rf"hpc_amp\.tasks\.{own}\b", words) is not None


def test_the_search_finds_names_of_tasks() -> None:
    """The test above can fail."""
    code = 'from hpc_amp.tasks.munit.task import Munit\nif task == "unit":\n    "a unit of spade"\n'
    assert [line for line, _ in task_names(code)] == [1, 2]
