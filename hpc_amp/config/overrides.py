"""Overrides on the command line: `job.nodes=4`, `train.model=resnet20`, `container.bind=[/a,/b]`.

A value is a YAML scalar, list or mapping. Where the key takes text, it is the text after the first
`=` as it is, so that nothing needs quoting twice; quotes around the whole of it come off, and
`null` is null where the key allows that. Mappings are merged; the last of several overrides wins.
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
    """`table` (with shorthands expanded) with the overrides merged in, in their order.

    Raises ConfigError for one that is not `key.path=value` or whose value is not YAML.
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
    if any(0xD800 <= ord(letter) <= 0xDFFF for letter in text):  # how Python shows stray bytes
        raise ConfigError("the value is not UTF-8 text", where=where)
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
    """The content of a text that is one quoted YAML string and nothing else."""
    if len(text) < 2 or text[0] not in "'\"" or text[-1] != text[0]:
        return None
    try:
        node = parse(text, lambda line: where)
    except ConfigError:
        return None
    return node if isinstance(node, Scalar) and node.quoted else None
