"""Convert a tree to a schema dataclass, or report the first error with its line.

The conversion is written by hand for the few types that the schema uses. Each error message can
therefore name the key, the line, the value as it was written, and what to write instead.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin

from hpc_amp.config import scalars
from hpc_amp.config.keys import Key, keys_of
from hpc_amp.config.suggest import choice_error, unknown_key
from hpc_amp.config.tree import Items, MappingNode, Node, Scalar, describe
from hpc_amp.config.values import EntryError
from hpc_amp.errors import ConfigError

T = TypeVar("T")
_SIMPLE = r"[\w./:=+-]+"


def build(section: type[T], table: MappingNode, prefix: str = "") -> T:
    """Convert `table` to an instance of the dataclass `section`. Shorthands must be expanded before
    (`keys.expand_section`).

    `prefix` is put before the key paths in errors. Raises ConfigError for the first wrong entry, in
    the order of the file.
    """
    built: T = _Builder(section, prefix).section(section, table, prefix)
    return built


def read_value(root: type, name: str, node: Node) -> Any:
    """Convert `node` to the value of the top-level key `name` of `root`. Raises ConfigError if it
    does not fit."""
    return _Builder(root, "").value(keys_of(root)[name], node, name)


class _Builder:
    def __init__(self, root: type, prefix: str) -> None:
        self.root = root
        self.prefix = prefix

    def section(self, section: type, table: MappingNode, path: str) -> Any:
        keys = keys_of(section)
        renamed = getattr(section, "RENAMED", {})
        values: dict[str, Any] = {}
        for name, node in table.entries.items():
            if name in renamed:
                raise _renamed(section, name, node, path)
            if name not in keys:
                raise unknown_key(self.root, self.prefix, path, name, keys, node.where)
            key = keys[name]
            if (
                isinstance(node, Scalar)
                and node.is_null
                and not key.optional
                and _holds_several_values(key)
            ):
                continue  # an empty section, such as one with all keys commented out: defaults
            values[key.field] = self.value(key, node, _join(path, name))
        for key in keys.values():
            if key.required and key.field not in values:
                raise ConfigError(
                    f"{_join(path, key.name)} is missing",
                    where=table.where,
                    hint=f"add a line {key.name}: ...",
                )
        return section(**values)

    def value(self, key: Key, node: Node, path: str) -> Any:
        """Convert a node to the key's type and apply the key's checks."""
        if isinstance(node, Scalar) and node.is_null:
            if key.optional:
                return None
            instead = "" if key.required else ", or leave the key out for its default"
            _fail(path, node, "may not be null", f"give a value{instead}")
        if key.is_section:
            if not isinstance(node, MappingNode):
                wrong = f"must be a section with keys, not {describe(node)}"
                _fail(path, node, wrong, f"its keys are {', '.join(keys_of(key.type))}")
            return self.section(key.type, node, path)
        value = _plain(key.type, node, path)
        if key.registered is not None and not key.registered.allows(value):
            assert isinstance(node, Scalar)
            raise choice_error(path, node, key.registered.choices)
        _check(key, value, node, path)
        if key.type is str and isinstance(node, Scalar):
            _refuse_number(node, path)
        return value


def _plain(kind: Any, node: Node, path: str) -> Any:
    """Convert a node to a type that is not a section."""
    origin = get_origin(kind)
    if kind is MappingNode:
        if not isinstance(node, MappingNode):
            _fail(path, node, f"must be a mapping, not {describe(node)}")
        return node
    if origin is list:
        (element,) = get_args(kind)
        return [_plain(element, *at) for at in _elements(node, path)]
    if origin is tuple:
        elements = get_args(kind)
        found = _elements(node, path)
        if len(found) != len(elements):
            _fail(path, node, f"must be a list of {len(elements)} values, not of {len(found)}")
        return tuple(_plain(element, *at) for element, at in zip(elements, found, strict=True))
    if origin is dict:
        if not isinstance(node, MappingNode):
            _fail(path, node, f"must be a mapping, not {describe(node)}", "write {KEY: value}")
        return {name: _text(child, _join(path, name)) for name, child in node.entries.items()}
    if kind is str:
        return _text(node, path)
    return _scalar(kind, node, path)


def _elements(node: Node, path: str) -> list[tuple[Node, str]]:
    if not isinstance(node, Items):
        text = node.text if isinstance(node, Scalar) else ""
        example = text if re.fullmatch(_SIMPLE, text) else "first, second"
        _fail(path, node, f"must be a list, not {describe(node)}", f"write [{example}]")
    return [(item, f"{path}[{index}]") for index, item in enumerate(node.items)]


def _text(node: Node, path: str) -> str:
    """The text exactly as written, so that 0.10 stays 0.10."""
    if not isinstance(node, Scalar):
        wrong = f"must be text, not {describe(node)}"
        _fail(path, node, wrong, "put a text with brackets or ': ' in quotes")
    if node.is_null:
        hint = 'write "" for no text, or quotes around the word null'
        _fail(path, node, "must be text, not null", hint)
    if "\0" in node.text:
        _fail(path, node, "holds a NUL character, which no program can receive")
    return node.text


def _scalar(kind: Any, node: Node, path: str) -> Any:
    """Convert a node to a boolean, a number or one of several choices."""
    if not isinstance(node, Scalar):
        wanted = {bool: "true or false", int: "a whole number", float: "a number"}
        _fail(path, node, f"must be {wanted.get(kind, 'a single value')}, not {describe(node)}")
    try:
        if kind is bool:
            return scalars.to_bool(node)
        if kind is int:
            return scalars.to_int(node)
        if kind is float:
            return scalars.to_float(node)
    except ValueError as error:
        _fail(path, node, str(error))
    assert get_origin(kind) is Literal, f"the schema has a type that is not handled: {kind}"
    for choice in get_args(kind):
        if node.text == str(choice) and (isinstance(choice, str) or not node.quoted):
            return choice
    raise choice_error(path, node, [str(choice) for choice in get_args(kind)])


def _check(key: Key, value: Any, node: Node, path: str) -> None:
    for check in key.checks:
        try:
            check(value)
        except EntryError as error:
            assert isinstance(node, MappingNode)
            _fail(_join(path, error.name), node.entries[error.name], str(error), error.hint)
        except ValueError as error:
            _fail(path, node, str(error))


def _refuse_number(scalar: Scalar, path: str) -> None:
    """Refuse an unquoted number where text is required: other YAML readers change 007 and 1e3.

    This is called after the checks, because their messages are more specific: a walltime of 90
    needs a unit, not quotes.
    """
    if scalar.quoted:
        return
    number = scalars.is_number(scalar.text)
    if number or scalars.is_bool(scalar.text):
        kind, text = "number" if number else "boolean", scalar.text[:60]
        _fail(path, scalar, f"must be text, not the {kind} {text}", f'write "{text}" in quotes')


def _renamed(section: Any, name: str, node: Node, path: str) -> ConfigError:
    """The error for the former name of a key. `RENAMED` gives the new name and the new form of the
    value, in which OLD stands for the old value."""
    new, form = section.RENAMED[name]
    hint = f"write {new}: {form}"
    if isinstance(node, Scalar):
        hint = hint.replace("OLD", node.text)
    return ConfigError(
        f"{_join(path, name)} is called {_join(path, new)} now", where=node.where, hint=hint
    )


def _holds_several_values(key: Key) -> bool:
    return key.is_section or key.type is MappingNode or get_origin(key.type) in (list, dict)


def _join(path: str, name: str) -> str:
    quoted = name if name.isprintable() and name.strip() else repr(name)
    return f"{path}.{quoted}" if path else quoted


def _fail(path: str, node: Node, message: str, hint: str | None = None) -> NoReturn:
    raise ConfigError(f"{path}: {message}", where=node.where, hint=hint)
