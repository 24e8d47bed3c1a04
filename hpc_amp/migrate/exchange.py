"""Replaces old names by new ones, if the text of the script decides what to write.

An import that binds the name itself (`from torch.cuda.amp import autocast`) is changed together
with all uses of the name, or not at all. If the import binds a package (`torch`, `apex`), each use
is changed separately.

The import visitors of libcst's codemods are not used: they only add imports at the top of a module
and only remove imports that nothing uses. Here an import is changed where it is, also in a function
or in a `try`.
"""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from hpc_amp.migrate.arguments import Undecidable
from hpc_amp.migrate.edits import Edit, ExtraImport, ImportChange, changed_statement
from hpc_amp.migrate.finding import ScriptFindings
from hpc_amp.migrate.moves import Move, Version
from hpc_amp.migrate.names import Binding, Import, Reference
from hpc_amp.migrate.program import MigratedProgram
from hpc_amp.migrate.uses import Uses


def exchange(
    program: MigratedProgram, moves: Mapping[str, Move], torch: Version, report: ScriptFindings
) -> None:
    """Report all uses of the names in `moves`, with the changes that are certain.

    `torch` is the oldest version that the script must support.
    """
    _Exchange(program, moves, Uses(program, moves, torch, report), report).run()


_SCOPES = (cst.FunctionDef, cst.ClassDef)


class _Exchange:
    def __init__(
        self,
        program: MigratedProgram,
        moves: Mapping[str, Move],
        uses: Uses,
        report: ScriptFindings,
    ) -> None:
        self._script = program.script
        self._names = program.names
        self._moves = moves
        self._uses = uses
        self._report = report
        self._imports: dict[Import, list[ImportChange | ExtraImport]] = {}

    def run(self) -> None:
        named = [binding for binding in self._names.bindings if self._gives_name(binding)]
        for group in self._groups(named):
            self._exchange(group)
        changed_nodes = {
            use.node
            for use in self._names.references
            if not any(binding in named for binding in use.bindings) and self._by_full_name(use)
        }
        for binding in self._names.bindings:
            if binding not in named:
                self._drop_package(binding, changed_nodes)
        for statement, changes in self._imports.items():
            new = changed_statement(statement, changes)
            first = next(one for one in self._names.bindings if one.statement is statement)
            self._report.add(
                _import_rule(first),
                statement,
                *changes,
                new="; ".join(self._script.code(one) for one in new) or "nothing; delete it",
            )

    def _gives_name(self, binding: Binding) -> bool:
        move = self._moves.get(binding.path)
        return move is not None and move.keeps_name

    def _groups(self, bindings: list[Binding]) -> list[list[Binding]]:
        """Group imports that share uses (the same name in two branches): they change together."""
        groups: list[list[Binding]] = []
        for binding in bindings:
            uses = self._names.uses_of(binding)
            shared = [group for group in groups if any(set(group) & set(u.bindings) for u in uses)]
            groups = [group for group in groups if group not in shared]
            groups.append([one for group in shared for one in group] + [binding])
        return groups

    def _exchange(self, bindings: list[Binding]) -> None:
        """Change a group of imports and all uses of their name, or report why not."""
        edits: dict[Reference, tuple[Edit, ...]] = {}
        failed: dict[Reference, str] = {}
        for use in self._names.uses_of(*bindings):
            try:
                edits[use] = self._uses.edits(use)
            except Undecidable as reason:
                failed[use] = str(reason)
            except KeyError:
                failed[use] = f"`{use.local}` has more than one meaning in this file"
        reasons = [self._import_stays(one, used=bool(edits or failed)) for one in bindings]
        for use, why in failed.items():
            reasons.append(f"line {self._script.place(use.node)[0]}: {why}")
            self._uses.report(use, (), why)
        stays = next(filter(None, reasons), "")
        line = self._script.place(bindings[0].statement)[0]
        for use, changes in edits.items():
            if changes:
                why = f"the import in line {line} is not changed either" if stays else ""
                self._uses.report(use, changes, why)
        for binding in bindings:
            path = self._moves[binding.path].new
            if stays:
                new = _import_text(binding, path)
                self._report.add(_import_rule(binding), binding.alias, left_because=stays, new=new)
            else:
                self._change_import(ImportChange(binding.statement, binding.alias, path))

    def _import_stays(self, binding: Binding, *, used: bool) -> str:
        """Why an import cannot be changed, independently of its uses, or ""."""
        move = self._moves[binding.path]
        try:
            self._uses.refuse(binding.statement, move)
        except Undecidable as reason:
            return str(reason)
        if not used and not self._names.is_quoted_type(binding.local):
            return "this file does not use it; delete it, unless it is a test or for other files"
        if move.uncalled == "anywhere":
            return ""
        if self._names.is_exported(binding.local):
            return "`__all__` exports it to other files"
        around = self._script.ancestors(binding.statement)
        if isinstance(
            next((one for one in around if isinstance(one, _SCOPES)), None), cst.ClassDef
        ):
            return "it is an attribute of a class, whose uses are not known"
        return ""

    def _by_full_name(self, use: Reference) -> bool:
        """Change a use that names a package (`torch.cuda.amp.autocast`). Returns whether it is."""
        try:
            move, rest = self._uses.find(use.name)
        except KeyError:
            return False
        except Undecidable as reason:
            self._uses.report(use, (), str(reason))
            return False
        package, _, path = move.new.partition(".")
        try:
            if use.star is not None:
                line = self._script.place(use.star)[0]
                raise Undecidable(f"it comes from the `import *` of line {line}")
            root, imports = self._root(package, use)
            edits = self._uses.edits(use, f"{root}.{path}{rest}")
        except Undecidable as reason:
            self._uses.report(use, (), str(reason))
            return False
        for extra in imports:
            self._change_import(extra)
        self._uses.report(use, edits)
        return True

    def _root(self, package: str, use: Reference) -> tuple[str, tuple[ExtraImport, ...]]:
        """The name of a package in the scope of a use, and the import that is needed for it."""
        module = package if package == "torch" else f"{package}.amp"
        for binding in self._names.bindings:
            is_it = binding.path == package and module in ("torch", binding.module)
            if is_it and self._names.meaning(binding.local, use.node) == package:
                return binding.local, ()
        if self._names.meaning(package, use.node) not in ("", package):
            raise Undecidable(f"`{package}` has another meaning here")
        return package, (ExtraImport(use.bindings[0].statement, module),)

    def _drop_package(self, binding: Binding, changed_nodes: set[cst.Name | cst.Attribute]) -> None:
        """Remove or change the import of a package whose old names are all replaced."""
        uses = self._names.uses_of(binding)
        left = [use for use in uses if use.node not in changed_nodes]
        if uses and not left and binding.path.partition(".")[0] == "apex":
            self._change_import(ImportChange(binding.statement, binding.alias, None))
            return
        # `import apex.amp`: this module no longer exists, but `apex` may still be needed.
        move = self._moves.get(binding.module)
        inside = [use for use in uses if f"{use.name}.".startswith(f"{binding.module}.")]
        if move is None or not inside or any(use in left for use in inside):
            return
        self._change_import(ImportChange(binding.statement, binding.alias, move.new))
        same = [one for one in self._names.bindings if one.local == binding.local]
        if binding.local != move.new.partition(".")[0] and len(same) == 1:
            self._change_import(ExtraImport(binding.statement, binding.local))

    def _change_import(self, change: ImportChange | ExtraImport) -> None:
        changes = self._imports.setdefault(change.statement, [])
        if change not in changes:
            changes.append(change)


def _import_rule(binding: Binding) -> str:
    return "apex-import" if binding.path.partition(".")[0] == "apex" else "old-amp-import"


def _import_text(binding: Binding, path: str) -> str:
    module, _, name = path.rpartition(".")
    if isinstance(binding.statement, cst.Import):
        return f"import {path} as {binding.local}"
    return f"from {module} import {name}" + (
        "" if name == binding.local else f" as {binding.local}"
    )
