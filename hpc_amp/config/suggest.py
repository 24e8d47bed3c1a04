"""Errors for unknown keys and values, with a suggestion of the nearest valid one."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator

from hpc_amp.config.keys import keys_of
from hpc_amp.config.tree import Scalar, describe, shown
from hpc_amp.errors import ConfigError
from hpc_amp.tasks.registry import TASKS, TaskError, config_class


def nearest(word: str, valid: Iterable[str]) -> str | None:
    """The valid word that is most similar to `word`, or None. Case and dashes are ignored."""
    from difflib import get_close_matches

    plain = {option.lower().replace("-", "_"): option for option in valid}
    near = get_close_matches(word.lower().replace("-", "_"), plain, n=1)
    return plain[near[0]] if near else None


def unknown_key(
    root: type, prefix: str, path: str, name: str, valid: Iterable[str], where: str
) -> ConfigError:
    """The error for a key `name` that the section at `path` does not have. `root` is the schema of
    the file, `prefix` the key path that stands before it, `valid` the section's keys, and `where`
    the place of the key."""
    valid = list(valid)
    printed = name if re.fullmatch(r"[\w.-]+", name) else shown(name)
    message = f"unknown key {path}.{printed}" if path else f"unknown key {printed}"
    elsewhere = [
        f"under {section}" if section else "at the top level"
        for section in _sections_with(root, name, prefix)
    ]
    near = nearest(name, valid)
    if elsewhere:
        hint = f"`{name}` belongs {' or '.join(elsewhere)}"
    elif path == "train" and (tasks := _tasks_with(name)):
        hint = f"`{name}` is a key of the task {' and of '.join(tasks)}"
    elif near:
        hint = f"did you mean {path}.{near}?" if path else f"did you mean {near}?"
    else:
        hint = f"the keys {f'of {path}' if path else 'at the top level'} are {', '.join(valid)}"
    return ConfigError(message, where=where, hint=hint)


def choice_error(path: str, scalar: Scalar, choices: list[str]) -> ConfigError:
    """The error for a value that is not one of the choices. `path` is its key path."""
    near = nearest(scalar.text, choices)
    return ConfigError(
        f"{path}: {describe(scalar)} is not one of {', '.join(choices)}",
        where=scalar.where,
        hint=f"did you mean {near}?" if near else None,
    )


def _tasks_with(name: str) -> list[str]:
    """The tasks that have a key `name` in `train`."""
    found = []
    for task in TASKS.names():
        with contextlib.suppress(TaskError):
            if name in keys_of(config_class(task)):
                found.append(task)
    return found


def _sections_with(section: type, name: str, path: str) -> Iterator[str]:
    """Yield the paths of all sections that have a key `name`."""
    keys = keys_of(section)
    if name in keys:
        yield path
    for key in keys.values():
        if key.is_section:
            yield from _sections_with(key.type, name, f"{path}.{key.name}" if path else key.name)
