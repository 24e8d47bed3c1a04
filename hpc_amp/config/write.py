"""Job files as YAML text, from values or from a tree."""

from __future__ import annotations

import math
from typing import Any

import yaml

from hpc_amp.config.load import LoadedJob
from hpc_amp.config.schema import to_plain
from hpc_amp.config.tree import Items, MappingNode, Node

_RESOLVER = yaml.resolver.Resolver()
_STRING = "tag:yaml.org,2002:str"


class _Dumper(yaml.SafeDumper):
    """Writes lists within lines, and mappings in lines of their own."""

    def represent_str(self, data: str) -> Any:
        """Text of several lines as a block."""
        return self.represent_scalar(_STRING, data, style="|" if "\n" in data else None)

    def represent_sequence(self, tag: str, sequence: Any, flow_style: Any = None) -> Any:
        return super().represent_sequence(tag, sequence, flow_style=True)


_Dumper.add_representer(str, _Dumper.represent_str)


def to_text(value: dict[str, Any], width: float = 100, *, allow_unicode: bool = True) -> str:
    """The YAML text of mappings, lists and scalars, in the order of the keys. Without
    `allow_unicode`, letters that are not ASCII are written as escapes."""
    return yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=allow_unicode, width=width
    )


def job_text(loaded: LoadedJob, *, origins: bool = False) -> str:
    """The YAML text of a job with all of its keys. Read again, it is the same job.

    `origins`: each value has a comment that says where it is from: a line of a file, an override,
    or `default`.
    """
    lines: list[tuple[str, str]] = []
    unused = () if loaded.job.train is None else type(loaded.job.train).UNUSED
    plain = to_plain(loaded.job)
    if plain["train"] is not None:
        kept = {n: v for n, v in plain["train"].items() if n not in unused}
        plain["train"] = kept
    # `run` has the values already.
    plain = {name: value for name, value in plain.items() if value is not None and name != "values"}
    _add_lines(plain, "", loaded.tree, lines)
    if not origins:
        return "".join(f"{text}\n" for text, _ in lines)
    width = min(60, max(len(text) for text, _ in lines))
    return "".join(
        f"{text:<{width}}  {where and '# ' + where}".rstrip() + "\n" for text, where in lines
    )


def _add_lines(
    values: dict[str, Any], prefix: str, tree: MappingNode, lines: list[tuple[str, str]]
) -> None:
    """Add the lines of a mapping, each with its origin. `prefix` is its key path with a dot."""
    indent = "  " * prefix.count(".")
    for name, value in values.items():
        path = prefix + name
        if isinstance(value, dict) and value:
            lines.append((f"{indent}{name}:", ""))
            _add_lines(value, f"{path}.", tree, lines)
            continue
        where = tree.place(path) if tree.has(path) else "default"
        # Without folding, so that a comment can follow the first line.
        plain = {name: list(value) if isinstance(value, tuple) else value}
        text = to_text(plain, math.inf).rstrip("\n")
        first, *further = text.split("\n")
        lines.append((indent + first, where))
        lines += [(indent + line, "") for line in further]


def tree_text(tree: MappingNode) -> str:
    """The YAML text of a tree. Read again, it is the same tree but for its places."""
    text: str = yaml.serialize(_node(tree), Dumper=_Dumper, allow_unicode=True, width=100)
    return text


def _node(node: Node) -> yaml.Node:
    if isinstance(node, MappingNode):
        entries = [(_scalar(name, quoted=False), _node(at)) for name, at in node.entries.items()]
        return yaml.MappingNode("tag:yaml.org,2002:map", entries, flow_style=False)
    if isinstance(node, Items):
        items = [_node(item) for item in node.items]
        return yaml.SequenceNode("tag:yaml.org,2002:seq", items, flow_style=True)
    return _scalar(node.text, quoted=node.quoted)


def _scalar(text: str, *, quoted: bool) -> yaml.ScalarNode:
    if quoted:
        return yaml.ScalarNode(_STRING, text, style="'")
    # The tag that the writer expects of a plain scalar, so that it adds no quotes.
    tag = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    return yaml.ScalarNode(tag, text)
