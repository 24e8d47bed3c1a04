"""The keys of a schema dataclass: for each field its key, type, checks and marks."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from dataclasses import MISSING
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from hpc_amp.config.schema import key_of
from hpc_amp.config.tree import MappingNode, Node, Scalar
from hpc_amp.config.values import FirstWeights, Fixed, PathMark, Registered


class Key(NamedTuple):
    """One key of a section."""

    name: str
    """The name in the job file."""
    field: str
    """The name of the dataclass's field."""
    type: Any
    """The type without `Annotated` and `| None`: `int`, `list[str]`, a `Literal`, a dataclass."""
    is_section: bool
    """Whether the value is a section with keys of its own."""
    optional: bool
    """Whether the value may be null."""
    checks: tuple[Callable[[Any], object], ...]
    """Functions that raise ValueError for a value of the right type that is not allowed."""
    required: bool
    """Whether the key has no default."""
    is_path: bool = False
    """Whether the value is a path or a list of binds."""
    is_first_weights: bool = False
    may_be_folder: bool = False
    """Whether the path names a file that only a new run reads."""
    fixed: Fixed | None = None
    """Why `resume` cannot change the key; None if it can."""
    registered: Registered | None = None
    """The registry with the allowed values, if there is one."""

    @property
    def shorthand(self) -> Key | None:
        """The key that a bare value of this section sets; None if the section has none."""
        name = getattr(self.type, "SHORTHAND", None) if self.is_section else None
        return keys_of(self.type)[name] if name else None


def keys_of(section: type) -> dict[str, Key]:
    """The keys of a schema dataclass by name, in the order of its fields. Fields whose metadata has
    `derived` are left out: they cannot be written in a file."""
    return _keys_of(section)


@functools.cache
def _keys_of(section: type[Any]) -> dict[str, Key]:
    hints = typing.get_type_hints(section, include_extras=True)
    keys = {}
    for field in dataclasses.fields(section):
        if field.metadata.get("derived"):
            continue
        kind, optional, marks = _unwrap(hints[field.name])
        is_path = any(isinstance(mark, PathMark) for mark in marks)
        first_weights = next((mark for mark in marks if isinstance(mark, FirstWeights)), None)
        fixed = next((mark for mark in marks if isinstance(mark, Fixed)), None)
        registered = next((mark for mark in marks if isinstance(mark, Registered)), None)
        checks = tuple(mark for mark in marks if callable(mark))
        required = field.default is MISSING and field.default_factory is MISSING
        name = key_of(field)
        keys[name] = Key(
            name=name,
            field=field.name,
            type=kind,
            is_section=dataclasses.is_dataclass(kind),
            optional=optional,
            checks=checks,
            required=required,
            is_path=is_path,
            is_first_weights=first_weights is not None,
            may_be_folder=first_weights is not None and first_weights.or_folder,
            fixed=fixed,
            registered=registered,
        )
    return keys


def unreadable(section: type, path: str) -> str | None:
    """The first field of a section, or of a section in it, whose type a job file cannot express, as
    a message for the user. Returns None if all types are supported. `path` is the key path of the
    section."""
    try:
        keys = keys_of(section)
    except (NameError, TypeError, ValueError) as error:
        return f"the types of its fields cannot be read: {error}"
    for name, key in keys.items():
        where = f"{path}.{name}"
        if key.is_section:
            problem = unreadable(key.type, where)
            if problem is not None:
                return problem
        elif not _is_readable(key.type):
            return f"{where} cannot have the type {key.type}"
    return None


def _is_readable(kind: Any) -> bool:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return True
    if origin is dict:
        return arguments == (str, str)
    if origin in (list, tuple):
        return bool(arguments) and all(map(_is_readable, arguments))
    return kind in (str, int, float, bool)


def find_key(section: type, path: list[str]) -> Key | None:
    """The key at a path of names below `section`, or None if the schema has no such key.

    An entry of a mapping, such as `container.env.HOME`, is a key of type `str`.
    """
    name, *rest = path
    key = keys_of(section).get(name)
    if key is None or not rest:
        return key
    if key.is_section:
        return find_key(key.type, rest)
    if get_origin(key.type) is dict and len(rest) == 1:
        entry = rest[0]
        return Key(entry, entry, str, is_section=False, optional=False, checks=(), required=False)
    return None


def expand(node: Node, key: Key) -> Node:
    """Return `node` with each shorthand replaced by the section that it stands for."""
    if not key.is_section:
        return node
    if isinstance(node, Scalar) and not node.is_null and key.shorthand:
        return MappingNode({key.shorthand.name: node}, node.where)
    return expand_section(node, key.type) if isinstance(node, MappingNode) else node


def expand_section(table: MappingNode, section: type) -> MappingNode:
    """Apply `expand` to each entry of a section. Unknown keys are not changed."""
    keys = keys_of(section)
    entries = {
        name: expand(node, keys[name]) if name in keys else node
        for name, node in table.entries.items()
    }
    return MappingNode(entries, table.where)


def _unwrap(hint: Any) -> tuple[Any, bool, tuple[Any, ...]]:
    """Split a type hint into its bare type, whether it allows None, and its checks and marks."""
    optional = False
    marks: tuple[Any, ...] = ()
    while True:
        origin = get_origin(hint)
        if origin is Annotated:
            marks += hint.__metadata__
            hint = hint.__origin__
        elif origin is Union or origin is types.UnionType:
            optional = True
            (hint,) = (option for option in get_args(hint) if option is not type(None))
        else:
            return hint, optional, marks
