"""The changes of a script. Everything else in the script is kept byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import libcst as cst

from hpc_amp.migrate.names import Import, module_of


@dataclass(frozen=True)
class NodeChange:
    """Replaces a node. `change` receives the node after the changes inside it."""

    node: cst.CSTNode
    change: Callable[[cst.CSTNode], cst.CSTNode]


@dataclass(frozen=True)
class ImportChange:
    """Changes the full name `path` of an import. If `path` is None, the import is removed."""

    statement: Import
    alias: cst.ImportAlias
    path: str | None


@dataclass(frozen=True)
class ExtraImport:
    """Adds the import of a module after an import statement."""

    statement: Import
    module: str


Edit = NodeChange | ImportChange | ExtraImport


def changed(node: cst.CSTNode, edits: Iterable[Edit]) -> cst.CSTNode:
    """Return a node with the edits inside it applied."""
    new = node.visit(_Changer(list(edits)))
    assert isinstance(new, cst.CSTNode)
    return new


def changed_statement(statement: Import, edits: Sequence[Edit]) -> list[Import]:
    """Return the statements that replace an import statement. The list may be empty."""
    aliases = statement.names
    assert not isinstance(aliases, cst.ImportStar)
    paths = {
        edit.alias: edit.path
        for edit in edits
        if isinstance(edit, ImportChange) and edit.statement is statement
    }
    new: list[Import] = []
    if isinstance(statement, cst.ImportFrom):
        new += _changed_from(statement, aliases, paths)
    else:
        kept = [
            alias if alias not in paths else alias.with_changes(name=_dotted(str(paths[alias])))
            for alias in aliases
            if paths.get(alias, "") is not None
        ]
        if kept:
            new.append(statement.with_changes(names=_without_last_comma(kept)))
    for edit in edits:
        if isinstance(edit, ExtraImport) and edit.statement is statement:
            extra = cst.Import([cst.ImportAlias(_dotted(edit.module))])
            if not any(extra.deep_equals(one) for one in new):
                new.append(extra)
    return new


def _changed_from(
    statement: cst.ImportFrom,
    aliases: Sequence[cst.ImportAlias],
    paths: dict[cst.ImportAlias, str | None],
) -> list[Import]:
    """Split a `from` import: its names may now come from several modules."""
    groups: dict[str, list[cst.ImportAlias]] = {}
    for alias in aliases:
        path = paths.get(alias, f"{module_of(statement)}.{alias.evaluated_name}")
        if path is None:
            continue
        module, _, name = path.rpartition(".")
        if alias not in paths:
            module = module_of(statement)
        elif name != alias.evaluated_name:
            local = alias.evaluated_alias or alias.evaluated_name
            asname = None if name == local else cst.AsName(cst.Name(local))
            alias = alias.with_changes(name=cst.Name(name), asname=asname)
        groups.setdefault(module, []).append(alias)
    if len(groups) == 1 and sum(map(len, groups.values())) == len(aliases):
        # All names now come from the same module, so the layout can be kept.
        ((module, members),) = groups.items()
        return [statement.with_changes(module=_dotted(module), names=members)]
    new: list[Import] = []
    for module, members in groups.items():
        if module == module_of(statement):
            new.append(statement.with_changes(names=_without_last_comma(members)))
        else:
            plain = [alias.with_changes(comma=cst.MaybeSentinel.DEFAULT) for alias in members]
            new.append(cst.ImportFrom(_dotted(module), plain))
    return new


def _without_last_comma(aliases: Sequence[cst.ImportAlias]) -> list[cst.ImportAlias]:
    return [*aliases[:-1], aliases[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)]


def _dotted(name: str) -> cst.Name | cst.Attribute:
    node = cst.parse_expression(name)
    assert isinstance(node, (cst.Name, cst.Attribute))
    return node


Line = cst.SimpleStatementLine | cst.SimpleStatementSuite
# Replaces a line whose statements are all removed. It remains if a block would be empty.
_GONE = cst.Pass()


class _Changer(cst.CSTTransformer):
    """Applies edits.

    Import statements are changed when their line is left, because the number of lines may change.
    """

    def __init__(self, edits: list[Edit]) -> None:
        super().__init__()
        self._edits = edits
        self._changes = {edit.node: edit.change for edit in edits if isinstance(edit, NodeChange)}
        self._imports = {edit.statement for edit in edits if not isinstance(edit, NodeChange)}

    def on_leave(  # type: ignore[override]
        self, original_node: cst.CSTNode, updated_node: cst.CSTNode
    ) -> object:
        change = self._changes.get(original_node)
        if change is not None:
            return change(updated_node)
        if isinstance(original_node, cst.SimpleStatementLine | cst.SimpleStatementSuite):
            assert isinstance(updated_node, cst.SimpleStatementLine | cst.SimpleStatementSuite)
            return self._line(original_node, updated_node)
        if isinstance(updated_node, cst.Module | cst.IndentedBlock):
            return _without_gone_lines(updated_node)
        return updated_node

    def _line(self, original: Line, updated: Line) -> object:
        if not any(statement in self._imports for statement in original.body):
            return updated
        body: list[cst.BaseSmallStatement] = []
        for before, after in zip(original.body, updated.body, strict=True):
            if isinstance(before, cst.Import | cst.ImportFrom) and before in self._imports:
                body += changed_statement(before, self._edits)
            else:
                body.append(after)
        if len(original.body) > 1 or len(body) < 2 or isinstance(updated, cst.SimpleStatementSuite):
            return updated.with_changes(body=body or [_GONE])
        lines = [updated.with_changes(body=body[:1])]
        lines += [cst.SimpleStatementLine([statement]) for statement in body[1:]]
        return cst.FlattenSentinel(lines)


def _without_gone_lines(block: cst.Module | cst.IndentedBlock) -> cst.CSTNode:
    """Remove lines without statements, unless the block would be empty. Comments above are kept."""
    gone = [isinstance(one, cst.SimpleStatementLine) and _GONE in one.body for one in block.body]
    if all(gone) or not any(gone):
        return block
    kept: list[cst.CSTNode] = []
    above: list[cst.EmptyLine] = []
    for line, is_gone in zip(block.body, gone, strict=True):
        assert isinstance(line, cst.SimpleStatementLine | cst.BaseCompoundStatement)
        above += line.leading_lines
        if not is_gone:
            kept.append(line.with_changes(leading_lines=above))
            above = []
    return block.with_changes(body=kept, footer=[*above, *block.footer])
