"""Overrides on the command line: `job.nodes=4`, `train.model=resnet20`, `container.bind=[/a,/b]`.

A value is a YAML scalar, list or mapping. If the key's type is text, the value is everything after
the first `=`, unchanged, so that nothing needs to be quoted twice. Two exceptions: quotes around
the whole value are removed, and `null` is null if the key allows it. Mappings are merged. If
several overrides set the same key, the last one counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hpc_amp.config.keys import Key, expand, find_key
from hpc_amp.config.source import parse
from hpc_amp.config.tree import MappingNode, Node, Scalar, assign, shown
from hpc_amp.errors import ConfigError

_KEY = re.compile(r"[\w-]+(?:\.[\w-]+)*", re.ASCII)


def apply_overrides(table: MappingNode, overrides: Sequence[str], section: type) -> MappingNode:
    """Merge overrides into `table`, in their order. Shorthands in `table` must be expanded before;
    `section` is its schema.

    Raises ConfigError if an override is not `key.path=value` or its value is not YAML.
    """
    for override in overrides:
        path, node = _parse_override(override, section)
        key = find_key(section, path)
        table = assign(table, path, expand(node, key) if key else node)
    return table


def _parse_override(override: str, section: type) -> tuple[list[str], Node]:
    where = f"override {shown(override)}"
    name, equals, text = override.partition("=")
    if not equals:
        raise ConfigError("this has no '='", where=where, hint="write key=value: job.nodes=4")
    if not _KEY.fullmatch(name):
        raise ConfigError(
            f"{shown(name)} cannot be a key" if name else "there is no key before the '='",
            where=where,
            hint="write key=value without spaces before the '=': job.nodes=4",
        )
    try:
        text.encode()
    except UnicodeEncodeError:  # surrogates: bytes that are not UTF-8
        raise ConfigError("the value is not UTF-8 text", where=where) from None
    path = name.split(".")
    return path, _value(text, find_key(section, path), where)


def _value(text: str, key: Key | None, where: str) -> Node:
    start = text.lstrip()[:1]
    if key and key.shorthand and start != "{" and text != "null":
        return _value(text, key.shorthand, where)
    if key and key.type is str:
        if key.optional and text == "null":
            return Scalar(text, where)
        return _quoted(text, where) or Scalar(text, where, quoted=True)
    if start in ("[", "{", '"', "'"):
        return parse(text, lambda line: where) or Scalar("", where)
    return Scalar(text.strip(), where)


def _quoted(text: str, where: str) -> Scalar | None:
    """The content of a text that is exactly one quoted YAML string; None for any other text."""
    if len(text) < 2 or text[0] not in "'\"" or text[-1] != text[0]:
        return None
    try:
        node = parse(text, lambda line: where)
    except ConfigError:
        return None
    return node if isinstance(node, Scalar) and node.quoted else None
