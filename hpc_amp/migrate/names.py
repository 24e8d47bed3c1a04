"""Finds the full names of the imported names in a script.

After `from torch.cuda import amp as a`, the full name of `a.autocast` is
`torch.cuda.amp.autocast`. Rules only use full names, so aliases and scopes do not matter to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import libcst as cst
from libcst.helpers import get_full_name_for_node
from libcst.metadata import ImportAssignment

from hpc_amp.migrate.script import SourceScript, text_of

# Inner modules that provide the same functions and classes as their package.
_INNER = [
    (re.compile(rf"^{re.escape(package)}\.(?:{inner})\.(?=\w)"), package + ".")
    for package, inner in (
        ("torch.cuda.amp", "autocast_mode|grad_scaler|common"),
        ("torch.cpu.amp", "autocast_mode|grad_scaler"),
        ("torch.amp", "autocast_mode|grad_scaler"),
        ("torch.nn.parallel", "distributed|data_parallel"),
        ("torch.nn.utils", "clip_grad"),
        ("apex.amp", "frontend|handle|amp"),
        ("apex.amp", r"_amp_state(?=\.(?:_amp_state|master_params)\b)"),
        ("apex.parallel", "distributed|optimized_sync_batchnorm|sync_batchnorm|LARC"),
        ("apex.optimizers", r"fused_\w+|fp16_optimizer"),
        ("apex.contrib.optimizers", r"fused_\w+|fp16_optimizer"),
        ("apex.fp16_utils", "fp16_optimizer|fp16util|loss_scaler"),
    )
]
_SAME = {
    "torch.autocast": "torch.amp.autocast",
    "torch.GradScaler": "torch.amp.GradScaler",
    "torch.nn.DataParallel": "torch.nn.parallel.DataParallel",
}

# The names that `from module import *` imports, from the last version that had the module.
STAR_IMPORTS: dict[str, tuple[str, ...]] = {
    "apex.amp": (
        "initialize", "scale_loss", "master_params", "state_dict", "load_state_dict", "init",
        "disable_casts", "half_function", "float_function", "promote_function",
        "register_half_function", "register_float_function", "register_promote_function",
    ),
    "apex.fp16_utils": (
        "BN_convert_float", "network_to_half", "prep_param_lists", "model_grads_to_master_grads",
        "master_params_to_model_params", "tofp16", "to_python_float", "clip_grad_norm",
        "convert_module", "convert_network", "FP16Model", "FP16_Optimizer", "LossScaler",
        "DynamicLossScaler",
    ),
    "apex.mlp": ("MLP",),
    "apex.normalization": (
        "FusedLayerNorm", "MixedFusedLayerNorm", "FusedRMSNorm", "MixedFusedRMSNorm",
    ),
    "apex.optimizers": (
        "FusedAdam", "FusedSGD", "FusedLAMB", "FusedNovoGrad", "FusedAdagrad",
        "FusedMixedPrecisionLamb", "FP16_Optimizer",
    ),
    "apex.parallel": (
        "DistributedDataParallel", "Reducer", "ReduceOp", "SyncBatchNorm", "convert_syncbn_model",
        "create_syncbn_process_group",
    ),
    "torch.cuda.amp": ("autocast", "GradScaler", "custom_fwd", "custom_bwd"),
    "torch.cpu.amp": ("autocast", "GradScaler"),
}  # fmt: skip

Import = cst.Import | cst.ImportFrom


def canonical(name: str) -> str:
    """Return the spelling of a full name that the rules use."""
    for pattern, package in _INNER:
        name = pattern.sub(package, name)
    return _SAME.get(name, name)


@dataclass(frozen=True)
class Binding:
    """A name that an import statement binds.

    `local` is the name in the script and `path` its full name. `module` is the module of a dotted
    `import a.b`, which only binds `a`; otherwise it is empty.
    """

    statement: Import
    alias: cst.ImportAlias
    local: str
    path: str
    module: str


@dataclass(frozen=True)
class Reference:
    """A use of an imported name, with the attributes after it.

    `name` is its full name. It is `certain` if the name has no other meaning. `bindings` are the
    imports that it may refer to; they are empty if it comes from `star`, an `import *`.
    """

    node: cst.Name | cst.Attribute
    name: str
    local: str
    certain: bool
    bindings: tuple[Binding, ...]
    star: cst.ImportFrom | None = None


class Names:
    """All imports of a script and all uses of what they import."""

    def __init__(self, script: SourceScript) -> None:
        self._script = script

    @cached_property
    def bindings(self) -> list[Binding]:
        """All bindings in the order of the text, without `import *`."""
        return [
            binding
            for statement in self.statements
            if not isinstance(statement.names, cst.ImportStar)
            for binding in _bindings(statement, statement.names)
        ]

    @cached_property
    def statements(self) -> list[Import]:
        """All import statements that are not relative, in the order of the text."""
        script = self._script
        found: list[Import] = [*script.all(cst.Import)]
        found += [one for one in script.all(cst.ImportFrom) if not one.relative]
        return sorted(found, key=script.order)

    @cached_property
    def _stars(self) -> dict[str, tuple[cst.ImportFrom, str]]:
        """The names from `import *` of known modules: the statement and the full name of each."""
        given = {}
        for statement in self.statements:
            if isinstance(statement, cst.ImportFrom) and isinstance(
                statement.names, cst.ImportStar
            ):
                package = canonical(f"{module_of(statement)}.x").removesuffix(".x")
                for name in STAR_IMPORTS.get(package, ()):
                    given[name] = (statement, f"{package}.{name}")
        return given

    @cached_property
    def references(self) -> list[Reference]:
        """All uses of imported names, in the order of the text."""
        found = (self._reference(root) for root in self._script.all(cst.Name))
        return [reference for reference in found if reference is not None]

    @cached_property
    def _by_node(self) -> dict[cst.CSTNode, Reference]:
        return {reference.node: reference for reference in self.references}

    @cached_property
    def _by_alias(self) -> dict[tuple[cst.CSTNode, str], list[Binding]]:
        table: dict[tuple[cst.CSTNode, str], list[Binding]] = {}
        for binding in self.bindings:
            table.setdefault((binding.statement, binding.local), []).append(binding)
        return table

    def uses_of(self, *bindings: Binding) -> list[Reference]:
        """Return the uses that may refer to these bindings, in the order of the text."""
        wanted = set(bindings)
        return [one for one in self.references if not wanted.isdisjoint(one.bindings)]

    def of(self, node: cst.CSTNode) -> str:
        """Return the full name of an expression, or "".

        A second meaning that is not an import does not count, such as `amp = None` after a failed
        import.
        """
        reference = self._by_node.get(node)
        return reference.name if reference else ""

    def meaning(self, local: str, at: cst.CSTNode) -> str | None:
        """Return the full name that a name has at a place.

        Returns "" if the name is not bound there, and None if it may have several meanings.
        """
        scope = self._script.scope(at)
        paths: set[str | None] = set()
        for assignment in scope[local] if scope is not None else ():
            found: list[Binding] = []
            if isinstance(assignment, ImportAssignment):
                found = self._by_alias.get((assignment.node, local), [])
            paths |= {binding.path for binding in found} or {None}
        if not paths:
            return ""
        return paths.pop() if len(paths) == 1 else None

    def is_exported(self, local: str) -> bool:
        """Whether `__all__` contains a name, so that other files may import it from this one."""
        for assign in self._script.all(cst.Assign):
            targets = [self._script.code(target.target) for target in assign.targets]
            strings = self._script.all(cst.SimpleString, assign.value)
            if "__all__" in targets and any(text_of(string) == local for string in strings):
                return True
        return False

    def is_quoted_type(self, local: str) -> bool:
        """Whether a quoted annotation contains a name."""
        word = re.compile(rf"(?<![\w.]){re.escape(local)}(?!\w)")
        return any(
            word.search(text_of(string) or "")
            for annotation in self._script.all(cst.Annotation)
            for string in self._script.all(cst.SimpleString, annotation)
        )

    def _reference(self, root: cst.Name) -> Reference | None:
        """The use of an imported name that begins with `root`, or None."""
        scope = self._script.scope(root)
        if scope is None or not self._script.is_read(root):
            return None
        node: cst.Name | cst.Attribute = root
        above = self._script.parent(node)
        while isinstance(above, cst.Attribute) and above.value is node:
            node, above = above, self._script.parent(above)
        if isinstance(above, cst.ImportAlias | cst.ImportFrom):
            return None
        bindings: list[Binding] = []
        certain = True
        for assignment in scope[root.value]:
            imported: list[Binding] = []
            if isinstance(assignment, ImportAssignment):
                imported = self._by_alias.get((assignment.node, root.value), [])
            bindings += imported
            certain = certain and bool(imported)
        rest = (get_full_name_for_node(node) or "")[len(root.value) :]
        if not scope[root.value] and root.value in self._stars:
            star, path = self._stars[root.value]
            return Reference(node, canonical(path + rest), root.value, False, (), star)
        if not bindings:
            return None
        bindings.sort(key=lambda one: self._script.order(one.alias))
        certain = certain and len({binding.path for binding in bindings}) == 1
        name = canonical(bindings[0].path + rest)
        return Reference(node, name, root.value, certain, tuple(bindings))


def module_of(statement: Import) -> str:
    """Return the module of `from a.b import ...`, or "" for a plain import."""
    if isinstance(statement, cst.ImportFrom) and statement.module is not None:
        return get_full_name_for_node(statement.module) or ""
    return ""


def _bindings(statement: Import, aliases: Sequence[cst.ImportAlias]) -> Iterator[Binding]:
    module = module_of(statement)
    for alias in aliases:
        name = alias.evaluated_name
        full = canonical(f"{module}.{name}" if module else name)
        if alias.evaluated_alias is not None:
            yield Binding(statement, alias, alias.evaluated_alias, full, "")
        elif isinstance(statement, cst.ImportFrom):
            yield Binding(statement, alias, name, full, "")
        else:
            top = name.partition(".")[0]
            yield Binding(statement, alias, top, top, full)
