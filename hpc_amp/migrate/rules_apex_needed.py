"""Rules about code that silently depends on apex after apex.amp is replaced.

Examples are a `try` whose handler runs if apex is missing, and tests whether apex is installed.
"""

from __future__ import annotations

import libcst as cst

from hpc_amp.migrate.apex_parts import EXTENSIONS, part
from hpc_amp.migrate.edits import ImportChange
from hpc_amp.migrate.finding import ScriptFindings
from hpc_amp.migrate.names import Import, module_of
from hpc_amp.migrate.program import MigratedProgram
from hpc_amp.migrate.script import text_of

_ASKS = ("find_spec", "find_loader", "import_module", "__import__", "get_distribution")
_CATCHES = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")
_INNER_SCOPES = (cst.FunctionDef, cst.ClassDef, cst.Lambda)


def check_apex_needed(program: MigratedProgram, report: ScriptFindings) -> None:
    """Apply the rules of this module. The report must already contain the changes of imports."""
    moved = {
        edit.alias
        for finding in report.findings()
        for edit in finding.edits
        if isinstance(edit, ImportChange)
    }
    for statement in program.script.all(cst.Try):
        if any(_catches_import_error(program, one) for one in statement.handlers):
            _try(program, statement, moved, report)
    uses_amp = any(
        one.name.startswith(("apex.amp.", "hpc_amp.amp.")) for one in program.names.references
    )
    for call in program.script.calls:
        if uses_amp and _asks_for_apex(program, call):
            report.add(
                "apex-still-needed",
                call,
                why="it tests for apex; if apex is not installed, the script does not use amp, "
                "although hpc_amp.amp is available",
                twin='test for "hpc_amp", or remove the test',
            )


def _try(
    program: MigratedProgram,
    statement: cst.Try,
    moved: set[cst.ImportAlias],
    report: ScriptFindings,
) -> None:
    """Check for imports of apex in the same `try` as an import that no longer needs apex."""
    works = False
    staying: dict[cst.CSTNode, str] = {}
    imports = [one for one in program.names.statements if _try_around(program, one) is statement]
    for one in imports:
        if isinstance(one.names, cst.ImportStar):
            if _is_of_apex(module_of(one)):
                staying[one] = module_of(one)
            continue
        for binding in program.names.bindings:
            if binding.statement is not one:
                continue
            name = binding.module or binding.path
            if binding.alias in moved or name.startswith("hpc_amp"):
                works = True
            elif _is_of_apex(name):
                staying[one if len(one.names) == 1 else binding.alias] = name
    if not works:
        return
    line = program.script.place(statement)[0]
    for node, name in staying.items():
        known = EXTENSIONS.get(name.partition(".")[0]) or part(name)
        why = "it fails if apex is not installed"
        if known.gone:
            why = f"it fails: it was {known.state}"
        report.add(
            "apex-still-needed",
            node,
            why=f"{why}; then the `except` of the `try` in line {line} runs, although hpc_amp is "
            "available",
            twin="delete it if it is not needed; otherwise move it to a separate `try`",
        )


def _is_of_apex(name: str) -> bool:
    package = name.partition(".")[0]
    return package == "apex" or package in EXTENSIONS


def _try_around(program: MigratedProgram, statement: Import) -> cst.Try | None:
    """The `try` whose handlers catch a failure of an import, or None."""
    inside: cst.CSTNode = statement
    for above in program.script.ancestors(statement):
        if isinstance(above, _INNER_SCOPES):
            return None
        if isinstance(above, cst.Try) and inside is above.body:
            return above
        inside = above
    return None


def _catches_import_error(program: MigratedProgram, handler: cst.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    return any(name.value in _CATCHES for name in program.script.all(cst.Name, handler.type))


def _asks_for_apex(program: MigratedProgram, call: cst.Call) -> bool:
    called = program.script.code(call.func).rpartition(".")[2]
    asked = text_of(call.args[0].value) if call.args else None
    return called in _ASKS and asked is not None and asked.partition(".")[0] == "apex"
