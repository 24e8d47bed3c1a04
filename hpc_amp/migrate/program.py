"""Finds out which variables of a script are scalers, optimizers, models or schedules.

A variable is identified by its text (`scaler`, `self.optimizer`) in the whole script. This is not
exact, so it is only used for reports, never for changes. The kind of a variable follows from how it
is created and from the methods that are called on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import libcst as cst
from libcst.metadata import Assignment

from hpc_amp.migrate.names import Names
from hpc_amp.migrate.script import SourceScript, argument, method, receiver

AUTOCASTS = ("torch.amp.autocast", "torch.cuda.amp.autocast", "torch.cpu.amp.autocast")
GRAD_SCALERS = ("torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "torch.cpu.amp.GradScaler")
HALF = {"torch.float16", "torch.half"}
_ONLY_MODULES_HAVE = {
    "parameters", "named_parameters", "modules", "named_modules", "children", "train", "eval",
}  # fmt: skip


class MigratedProgram:
    """A script, its names and its variables."""

    def __init__(self, script: SourceScript) -> None:
        self.script = script
        self.names = Names(script)

    def calls_of(self, *names: str) -> list[cst.Call]:
        """Return the calls of functions with these full names, in the order of the text."""
        return [call for call in self.script.calls if self.names.of(call.func) in names]

    def amp_calls(self, name: str) -> list[cst.Call]:
        """Return the calls of a function of apex.amp or hpc_amp.amp."""
        return self.calls_of(f"apex.amp.{name}", f"hpc_amp.amp.{name}")

    def methods(self, *names: str) -> Iterator[tuple[cst.Call, str]]:
        """Yield the calls of methods with these names, each with the text of its object."""
        for call in self.script.calls:
            if method(call) in names:
                yield call, self.script.code(receiver(call))

    def on(self, *names: str) -> set[str]:
        """Return the texts of the objects on which methods with these names are called."""
        return {text for _, text in self.methods(*names)}

    def made_by(self, calls: list[cst.Call]) -> set[str]:
        """Return the texts of the variables to which the results of calls are assigned."""
        return {text for call in calls for text in self.script.assigned_to(call)}

    @cached_property
    def own_scalers(self) -> set[str]:
        """Gradient scalers that are created in this script."""
        return self.made_by(self.calls_of(*GRAD_SCALERS))

    @cached_property
    def scalers(self) -> set[str]:
        """Gradient scalers that are created in this script, or used like one."""
        return (
            self.own_scalers
            | self.on("unscale_")
            | {scaler for call in self.script.calls if (scaler := self.scaler_of(call))}
        )

    def scaler_of(self, call: cst.Call) -> str:
        """Return the scaler of `scaler.scale(loss).backward()`, or "" for another call."""
        if method(call) != "backward":
            return ""
        loss = receiver(call)
        if isinstance(loss, cst.Call) and method(loss) == "scale":
            return self.script.code(receiver(loss))
        return ""

    @cached_property
    def disabled_scalers(self) -> set[str]:
        """Gradient scalers that are created with enabled=False, so that they do nothing."""
        calls = self.calls_of(*GRAD_SCALERS)
        off = [one for one in calls if self._says_false(argument(one, "enabled"))]
        return self.made_by(off) - self.made_by([one for one in calls if one not in off])

    def _says_false(self, value: cst.BaseExpression | None) -> bool:
        return value is not None and self.script.code(value) == "False"

    @cached_property
    def optimizers(self) -> set[str]:
        """Optimizers that are created in this script, passed to a scaler, or used like one."""
        made = [
            call
            for call in self.script.calls
            if self.names.of(call.func).startswith(("torch.optim.", "apex.optimizers."))
            and not self.names.of(call.func).startswith("torch.optim.lr_scheduler.")
        ]
        given = {
            self.script.code(call.args[0].value)
            for call, text in self.methods("step", "unscale_")
            if text in self.scalers and call.args
        }
        return self.made_by(made) | given | (self.on("zero_grad") & self.on("step"))

    @cached_property
    def schedules(self) -> set[str]:
        """Learning-rate schedules that are created in this script or have such a name."""
        made = [
            call
            for call in self.script.calls
            if self.names.of(call.func).startswith("torch.optim.lr_scheduler.")
        ]
        named = {text for text in self.on("step") if "sched" in text.rpartition(".")[2].lower()}
        return (self.made_by(made) | named) - self.optimizers

    @cached_property
    def models(self) -> set[str]:
        """Modules, recognised by methods that only modules have."""
        return self.on(*_ONLY_MODULES_HAVE)

    @cached_property
    def trains(self) -> bool:
        """Whether the script trains: it calls backward, creates a scaler or uses apex."""
        return bool(self.on("backward") or self.calls_of(*GRAD_SCALERS)) or any(
            reference.name.startswith(("apex.amp", "apex.fp16_utils", "hpc_amp.amp"))
            for reference in self.names.references
        )

    def autocast_around(self, node: cst.CSTNode) -> cst.Call | None:
        """Return the innermost autocast around a node, or None. A disabled one counts as none."""
        for above in self.script.ancestors(node):
            calls: list[cst.BaseExpression] = []
            if isinstance(above, cst.With):
                calls = [item.item for item in above.items]
            elif isinstance(above, cst.FunctionDef):
                calls = [decorator.decorator for decorator in above.decorators]
            for call in calls:
                if isinstance(call, cst.Call) and self.names.of(call.func) in AUTOCASTS:
                    return None if self.is_disabled(call) else call
            if isinstance(above, cst.FunctionDef | cst.Lambda):
                return None
        return None

    def is_disabled(self, autocast: cst.Call) -> bool:
        """Whether an autocast has enabled=False."""
        position = 0 if self.names.of(autocast.func) != "torch.amp.autocast" else 2
        return self._says_false(argument(autocast, "enabled", position))

    def dtype_of(self, autocast: cst.Call) -> str | None:
        """Return the full name of the type of an autocast.

        Returns "" for the default type of the device, and None if the type is not known.
        """
        dtype = argument(autocast, "dtype", 1)
        if dtype is None:
            return None if any(arg.star for arg in autocast.args) else ""
        return self.names.of(dtype) or None

    def is_handed_on(self, variable: str, *, within_file: bool = True) -> bool:
        """Whether a variable is returned or passed to a function, which then may use it.

        Without `within_file`, only functions outside this script count.
        """
        code = self.script.code
        here = set()
        if not within_file:
            here = {function.name.value for function in self.script.all(cst.FunctionDef)}
        return any(
            code(arg.value) == variable
            for call in self.script.calls
            if code(call.func).rpartition(".")[2] not in here
            for arg in call.args
        ) or any(
            one.value is not None and code(one.value) == variable
            for one in self.script.all(cst.Return)
        )

    def is_same_variable(self, made: cst.CSTNode, used: cst.CSTNode) -> bool:
        """Whether two places with the same text are the same variable.

        A name must be in the same scope, an attribute of `self` in the same class, and another
        attribute in the same function.
        """
        if isinstance(made, cst.Name) and isinstance(used, cst.Name):
            scope = self.script.scope(used)
            assignments = () if scope is None else scope[used.value]
            return any(isinstance(one, Assignment) and one.node is made for one in assignments)
        kind: type[cst.CSTNode] = cst.FunctionDef
        if self.script.code(made).startswith("self."):
            kind = cst.ClassDef
        return self._around(made, kind) is self._around(used, kind)

    def _around(self, node: cst.CSTNode, kind: type[cst.CSTNode]) -> cst.CSTNode | None:
        """The innermost node of a type around a node."""
        return next((one for one in self.script.ancestors(node) if isinstance(one, kind)), None)

    def function_around(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """Return the innermost function around a node, or None."""
        return self._around(node, cst.FunctionDef)

    def class_around(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """Return the innermost class around a node, or None."""
        return self._around(node, cst.ClassDef)

    def saves_optimizer(self) -> list[cst.Dict | cst.Call]:
        """Return the dictionaries that contain the state of an optimizer, which are checkpoints."""

        def is_state(value: cst.BaseExpression) -> bool:
            return method(value) == "state_dict" and (
                self.script.code(receiver(cst.ensure_type(value, cst.Call))) in self.optimizers
            )

        literal = [
            one
            for one in self.script.all(cst.Dict)
            if any(isinstance(e, cst.DictElement) and is_state(e.value) for e in one.elements)
        ]
        called = [
            call
            for call in self.script.calls
            if self.script.code(call.func) == "dict" and any(is_state(a.value) for a in call.args)
        ]
        return [*literal, *called]
