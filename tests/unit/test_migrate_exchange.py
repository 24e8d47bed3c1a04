"""What `hpc-amp migrate --write` makes of old names, and what it leaves alone, with the reason."""

from __future__ import annotations

import ast
import inspect
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_amp.migrate.finding import MigrationFinding
from hpc_amp.migrate.scan import scan

OLDEST = (2, 4)


def changed(text: str, torch_version: tuple[int, int] = OLDEST) -> str:
    """The text with all changes. It is Python, and a second run has nothing to change."""
    _, new = scan(text, "x.py", "drop-in", torch_version)
    ast.parse(new)
    again, same = scan(new, "x.py", "drop-in", torch_version)
    assert same == new
    assert not any(finding.mechanical for finding in again)
    return new


def left(text: str, torch_version: tuple[int, int] = OLDEST) -> list[MigrationFinding]:
    """The findings of a text in which nothing is changed."""
    findings, new = scan(text, "x.py", "drop-in", torch_version)
    assert new == text
    return findings


CHANGES = {
    # ---- calls ----------------------------------------------------------------------------------
    "no arguments": (
        "import torch\nwith torch.cuda.amp.autocast():\n    y = model(x)\n",
        'import torch\nwith torch.amp.autocast("cuda"):\n    y = model(x)\n',
    ),
    "enabled by position": (
        "import torch\nwith torch.cuda.amp.autocast(args.amp):\n    y = model(x)\n",
        'import torch\nwith torch.amp.autocast("cuda", enabled=args.amp):\n    y = model(x)\n',
    ),
    "all by position": (
        "import torch\na = torch.cuda.amp.autocast(True, torch.bfloat16, False)\n",
        'import torch\na = torch.amp.autocast("cuda", enabled=True, dtype=torch.bfloat16, '
        "cache_enabled=False)\n",
    ),
    "keywords": (
        "import torch\na = torch.cuda.amp.autocast(enabled = on, dtype=torch.float16)\n",
        'import torch\na = torch.amp.autocast("cuda", enabled = on, dtype=torch.float16)\n',
    ),
    "unknown keywords": (
        "import torch\na = torch.cuda.amp.autocast(**options)\n",
        'import torch\na = torch.amp.autocast("cuda", **options)\n',
    ),
    "a line for each argument": (
        "import torch\na = torch.cuda.amp.autocast(\n    on,  # or not\n    torch.float16,\n)\n",
        'import torch\na = torch.amp.autocast(\n    "cuda",\n    enabled=on,  # or not\n'
        "    dtype=torch.float16,\n)\n",
    ),
    "cpu": (
        "import torch\na = torch.cpu.amp.autocast(dtype=torch.bfloat16)\n",
        'import torch\na = torch.amp.autocast("cpu", dtype=torch.bfloat16)\n',
    ),
    "scaler": (
        "import torch\ns = torch.cuda.amp.GradScaler()\n",
        'import torch\ns = torch.amp.GradScaler("cuda")\n',
    ),
    "scaler by position": (
        "import torch\ns = torch.cuda.amp.GradScaler(2.0 ** 10, *rest, enabled=on)\n",
        'import torch\ns = torch.amp.GradScaler("cuda", 2.0 ** 10, *rest, enabled=on)\n',
    ),
    "state of autocast": (
        "import torch\nt = torch.get_autocast_gpu_dtype()\n"
        "torch.set_autocast_gpu_dtype(torch.float16)\nc = torch.is_autocast_cpu_enabled()\n",
        'import torch\nt = torch.get_autocast_dtype("cuda")\n'
        'torch.set_autocast_dtype("cuda", torch.float16)\nc = torch.is_autocast_enabled("cpu")\n',
    ),
    "one inside the other": (
        "import torch\na = torch.cuda.amp.autocast(isinstance(s, torch.cuda.amp.GradScaler))\n",
        'import torch\na = torch.amp.autocast("cuda", '
        "enabled=isinstance(s, torch.amp.GradScaler))\n",
    ),
    # ---- decorators -----------------------------------------------------------------------------
    "custom functions": (
        "from torch.cuda.amp import custom_bwd, custom_fwd\nclass F(Function):\n"
        "    @staticmethod\n    @custom_fwd\n    def forward(ctx, x): ...\n"
        "    @staticmethod\n    @custom_bwd\n    def backward(ctx, g): ...\n",
        "from torch.amp import custom_bwd, custom_fwd\nclass F(Function):\n"
        '    @staticmethod\n    @custom_fwd(device_type="cuda")\n    def forward(ctx, x): ...\n'
        '    @staticmethod\n    @custom_bwd(device_type="cuda")\n    def backward(ctx, g): ...\n',
    ),
    "custom function with a type": (
        "import torch\n@torch.cuda.amp.custom_fwd(cast_inputs=torch.float32)\ndef f(ctx): ...\n",
        "import torch\n@torch.amp.custom_fwd(cast_inputs=torch.float32, "
        'device_type="cuda")\ndef f(ctx): ...\n',
    ),
    "custom function called": (
        "import torch\nf = torch.cuda.amp.custom_fwd(\n    f,\n    cast_inputs=torch.half,\n)\n",
        "import torch\nf = torch.amp.custom_fwd(\n    f,\n    cast_inputs=torch.half,\n"
        '    device_type="cuda",\n)\n',
    ),
    "autocast as a decorator": (
        "from torch.cuda.amp import autocast\n@autocast()\ndef forward(x): ...\n",
        'from torch.amp import autocast\n@autocast("cuda")\ndef forward(x): ...\n',
    ),
    # ---- names of the torch modules -------------------------------------------------------------
    "two names, one import": (
        "from torch.cuda.amp import GradScaler, autocast  # both\ns = GradScaler()\n"
        "with autocast(): ...\n",
        'from torch.amp import GradScaler, autocast  # both\ns = GradScaler("cuda")\n'
        'with autocast("cuda"): ...\n',
    ),
    "in parentheses": (
        "from torch.cuda.amp import (\n    autocast as cast,  # the one\n    GradScaler,\n)\n"
        "s = GradScaler()\nwith cast(on): ...\n",
        "from torch.amp import (\n    autocast as cast,  # the one\n    GradScaler,\n)\n"
        's = GradScaler("cuda")\nwith cast("cuda", enabled=on): ...\n',
    ),
    "inner modules": (
        "from torch.cuda.amp.autocast_mode import autocast\n"
        "from torch.cuda.amp.grad_scaler import GradScaler\n"
        "s = GradScaler()\nwith autocast(): ...\n",
        "from torch.amp import autocast\nfrom torch.amp import GradScaler\n"
        's = GradScaler("cuda")\nwith autocast("cuda"): ...\n',
    ),
    "the module": (
        "from torch.cuda import amp\ns = amp.GradScaler()\nwith amp.autocast(on): ...\n",
        'from torch import amp\ns = amp.GradScaler("cuda")\nwith amp.autocast("cuda", '
        "enabled=on): ...\n",
    ),
    "the module, renamed": (
        "import torch.cuda.amp as tca\ns = tca.GradScaler()\n",
        'import torch.amp as tca\ns = tca.GradScaler("cuda")\n',
    ),
    "the module, from with as": (
        "from torch.cuda import amp as tca\ns = tca.GradScaler()\n",
        'from torch import amp as tca\ns = tca.GradScaler("cuda")\n',
    ),
    "the module by its full name": (
        "import torch.cuda.amp\ns = torch.cuda.amp.GradScaler()\nx = torch.ones(2)\n",
        'import torch.amp\ns = torch.amp.GradScaler("cuda")\nx = torch.ones(2)\n',
    ),
    "torch, renamed": (
        "import torch as th\ns = th.cuda.amp.GradScaler()\n",
        'import torch as th\ns = th.amp.GradScaler("cuda")\n',
    ),
    "torch.cuda": (
        "from torch import cuda\nimport torch as t\ns = cuda.amp.GradScaler()\n"
        "cuda.synchronize()\n",
        'from torch import cuda\nimport torch as t\ns = t.amp.GradScaler("cuda")\n'
        "cuda.synchronize()\n",
    ),
    "torch.cuda without torch": (
        "from torch import cuda\ns = cuda.amp.GradScaler()\n",
        'from torch import cuda\nimport torch\ns = torch.amp.GradScaler("cuda")\n',
    ),
    "in a function": (
        "def train():\n    from torch.cuda.amp import GradScaler\n    return GradScaler()\n",
        'def train():\n    from torch.amp import GradScaler\n    return GradScaler("cuda")\n',
    ),
    "only some names": (
        "from torch.cuda.amp import autocast, GradScaler\nmake = partial(autocast)\n"
        "s = GradScaler()\n",
        "from torch.cuda.amp import autocast\nfrom torch.amp import GradScaler\n"
        'make = partial(autocast)\ns = GradScaler("cuda")\n',
    ),
    "another name of torch.cuda": (
        "from torch.cuda import Event, amp\ne = Event()\ns = amp.GradScaler()\n",
        "from torch.cuda import Event\nfrom torch import amp\ne = Event()\n"
        's = amp.GradScaler("cuda")\n',
    ),
    "in odd places": (
        "import torch\nmake = lambda: (torch.cuda.amp).GradScaler()\n"
        "all_ = [s for _ in x if (s := torch.cuda.amp.GradScaler())]\n"
        "async def f(s=torch.cuda.amp.GradScaler()):\n"
        "    with torch.cuda.amp.autocast() as a, other(): ...\n",
        'import torch\nmake = lambda: torch.amp.GradScaler("cuda")\n'
        'all_ = [s for _ in x if (s := torch.amp.GradScaler("cuda"))]\n'
        'async def f(s=torch.amp.GradScaler("cuda")):\n'
        '    with torch.amp.autocast("cuda") as a, other(): ...\n',
    ),
    "two on one line": (
        "import os; from torch.cuda.amp import autocast; a = autocast()\n",
        'import os; from torch.amp import autocast; a = autocast("cuda")\n',
    ),
    "types": (
        "from torch.cuda.amp import GradScaler\ndef f(s: 'GradScaler', t: GradScaler | None): ...\n"
        "isinstance(s, GradScaler)\nisinstance(s, (int, GradScaler))\n",
        "from torch.amp import GradScaler\ndef f(s: 'GradScaler', t: GradScaler | None): ...\n"
        "isinstance(s, GradScaler)\nisinstance(s, (int, GradScaler))\n",
    ),
    "the same in two branches": (
        "if a:\n    from torch.cuda.amp import autocast\nelse:\n"
        "    from torch.cuda.amp import autocast\nautocast()\n",
        "if a:\n    from torch.amp import autocast\nelse:\n"
        '    from torch.amp import autocast\nautocast("cuda")\n',
    ),
    "a parameter of that name": (
        "from torch.cuda.amp import autocast\ndef f(autocast): return autocast(1)\nautocast()\n",
        'from torch.amp import autocast\ndef f(autocast): return autocast(1)\nautocast("cuda")\n',
    ),
    # ---- apex -----------------------------------------------------------------------------------
    "apex.amp": (
        "from apex import amp\nmodel, o = amp.initialize(model, o, opt_level=level)\n",
        "from hpc_amp import amp\nmodel, o = amp.initialize(model, o, opt_level=level)\n",
    ),
    "apex.amp, renamed": (
        "import apex.amp as amp\namp.initialize(model)\n",
        "import hpc_amp.amp as amp\namp.initialize(model)\n",
    ),
    "functions of apex.amp": (
        "from apex.amp import initialize, scale_loss as scaled\ninitialize(m)\nscaled(l, o)\n",
        "from hpc_amp.amp import initialize, scale_loss as scaled\ninitialize(m)\nscaled(l, o)\n",
    ),
    "apex.amp where it is optional": (
        "try:\n    from apex import amp\nexcept ImportError:\n    amp = None\n"
        "if amp is not None:\n    amp.initialize(model)\n",
        "try:\n    from hpc_amp import amp\nexcept ImportError:\n    amp = None\n"
        "if amp is not None:\n    amp.initialize(model)\n",
    ),
    "apex.amp handed on": (
        "from apex import amp\ntrain(model, amp)\n@amp.float_function\ndef f(x): ...\n",
        "from hpc_amp import amp\ntrain(model, amp)\n@amp.float_function\ndef f(x): ...\n",
    ),
    "import apex": (
        "import apex\nm = apex.amp.initialize(m)\nwith apex.amp.scale_loss(l, o) as s: ...\n",
        "import hpc_amp.amp\nm = hpc_amp.amp.initialize(m)\n"
        "with hpc_amp.amp.scale_loss(l, o) as s: ...\n",
    ),
    "import apex for more": (
        "import apex\nm = apex.amp.initialize(m)\no = apex.optimizers.FusedSGD(p, 0.1)\n",
        "import apex\nimport hpc_amp.amp\nm = hpc_amp.amp.initialize(m)\n"
        "o = apex.optimizers.FusedSGD(p, 0.1)\n",
    ),
    "import apex.amp for more": (
        "import apex.amp\nm = apex.amp.initialize(m)\no = apex.optimizers.FusedSGD(p, 0.1)\n",
        "import hpc_amp.amp\nimport apex\nm = hpc_amp.amp.initialize(m)\n"
        "o = apex.optimizers.FusedSGD(p, 0.1)\n",
    ),
    "import apex, renamed": (
        "import apex as ax\nm = ax.amp.initialize(m)\n",
        "import hpc_amp.amp\nm = hpc_amp.amp.initialize(m)\n",
    ),
    "two packages of apex": (
        "from apex import amp, optimizers\namp.initialize(m)\noptimizers.FusedSGD(p, 0.1)\n",
        "from hpc_amp import amp\nfrom apex import optimizers\namp.initialize(m)\n"
        "optimizers.FusedSGD(p, 0.1)\n",
    ),
    "ddp": (
        "from apex.parallel import DistributedDataParallel as DDP\nmodel = DDP(model)\n"
        "isinstance(model, DDP)\n",
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "model = DDP(model, broadcast_buffers=False)\nisinstance(model, DDP)\n",
    ),
    "ddp with a delayed all-reduce": (
        "from apex.parallel import DistributedDataParallel as DDP\n"
        "a = DDP(model, delay_allreduce=True)\nb = DDP(model, delay_allreduce = args.late)\n",
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "a = DDP(model, find_unused_parameters=True, broadcast_buffers=False)\n"
        "b = DDP(model, find_unused_parameters = args.late, broadcast_buffers=False)\n",
    ),
    "ddp by its full name": (
        "import apex, torch\nmodel = apex.parallel.DistributedDataParallel(module=model)\n",
        "import torch\nmodel = torch.nn.parallel.DistributedDataParallel(module=model, "
        "broadcast_buffers=False)\n",
    ),
    "sync batch norm": (
        "import torch\n# keep me\nfrom apex.parallel import convert_syncbn_model\n\n"
        "model = convert_syncbn_model(model)\n",
        "import torch\n# keep me\n\nmodel = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)\n",
    ),
    "expressions that need parentheses beside others": (
        "import torch\ntorch.cuda.amp.autocast(use := True)\n"
        "torch.cuda.amp.GradScaler(1.0 for _ in ())\ntorch.cuda.amp.custom_fwd(f for f in ())\n",
        'import torch\ntorch.amp.autocast("cuda", enabled=(use := True))\n'
        'torch.amp.GradScaler("cuda", (1.0 for _ in ()))\n'
        'torch.amp.custom_fwd((f for f in ()), device_type="cuda")\n',
    ),
    "an import that was all of a block": (
        "import torch\ntry:\n    import apex  # maybe\nexcept ImportError: ...\n"
        "model = apex.parallel.convert_syncbn_model(model)\n",
        "import torch\ntry:\n    pass  # maybe\nexcept ImportError: ...\n"
        "model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)\n",
    ),
}


@pytest.mark.parametrize(("before", "after"), CHANGES.values(), ids=CHANGES)
def test_changes(before: str, after: str) -> None:
    assert changed(before) == after


LEFT = {
    "unknown positions": (
        "import torch\ntorch.cuda.amp.autocast(*given)\n",
        "the arguments in `*` are not known",
    ),
    "handed on": (
        "import torch\nmake = torch.cuda.amp.autocast\n",
        "`torch.cuda.amp.autocast` is used without being called",
    ),
    "a decorator without parentheses": (
        "from torch.cuda.amp import autocast\n@autocast\ndef f(): ...\n",
        "line 2: `autocast` is used without being called",
    ),
    "a base class": (
        "from torch.cuda.amp import GradScaler\nclass Mine(GradScaler): ...\n",
        "line 2: `GradScaler` is used without being called",
    ),
    "a fallback of one's own": (
        "try:\n    from torch.cuda.amp import autocast\nexcept ImportError:\n"
        "    class autocast: ...\nwith autocast(True): ...\n",
        "line 5: `autocast` has more than one meaning in this file",
    ),
    "a fallback to the old": (
        "try:\n    from torch.amp import autocast\nexcept ImportError:\n"
        "    from torch.cuda.amp import autocast\nwith autocast(): ...\n",
        "it is in an exception handler",
    ),
    "a branch for a version": (
        "import torch\nif torch.__version__ >= '2.4':\n    s = torch.amp.GradScaler('cuda')\n"
        "else:\n    s = torch.cuda.amp.GradScaler()\n",
        "it is in a branch for a certain version",
    ),
    "an expression for a version": (
        "import torch\ns = (torch.amp.GradScaler('cuda') if hasattr(torch.amp, 'GradScaler')\n"
        "     else torch.cuda.amp.GradScaler())\n",
        "it is in a branch for a certain version",
    ),
    "in an f-string": (
        "import torch\nprint(f'{torch.cuda.amp.GradScaler()}')\n",
        "it is in an f-string",
    ),
    "hpc_amp is another name": (
        "import apex\ndef f(hpc_amp): return apex.amp.initialize(m)\n",
        "`hpc_amp` has another meaning here",
    ),
    "exported": (
        "from torch.cuda.amp import autocast\n__all__ = ['autocast', 'f']\n"
        "def f():\n    with autocast(): ...\n",
        "`__all__` exports it to other files",
    ),
    "not used": ("from torch.cuda.amp import autocast\n", "this file does not use it"),
    "one use is not clear": (
        "from torch.cuda import amp\ns = amp.GradScaler()\nmake = amp.autocast\n",
        "line 3: `amp.autocast` is used without being called",
    ),
    "an autocast with another type": (
        "import torch\nwith torch.amp.autocast('cuda', dtype=kind):\n"
        "    with torch.cuda.amp.autocast(): ...\n",
        "inside the autocast of line 2, it would use that type",
    ),
    "an autocast of CPUs with another type": (
        "import torch\nwith torch.amp.autocast('cpu', dtype=torch.float16):\n"
        "    with torch.cpu.amp.autocast(): ...\n",
        "inside the autocast of line 2, it would use that type",
    ),
    "a type set for all autocasts": (
        "import torch\ntorch.set_autocast_dtype('cuda', torch.bfloat16)\n"
        "with torch.cuda.amp.autocast(): ...\n",
        "it would use the type that line 2 sets",
    ),
    "an attribute of a class": (
        "class Trainer:\n    from torch.cuda.amp import autocast\n    half = autocast()\n"
        "    def step(self):\n        with self.autocast(): ...\n",
        "it is an attribute of a class",
    ),
    "torch is another name": (
        "from torch import cuda\ndef f(torch):\n    return cuda.amp.GradScaler()\n",
        "`torch` has another meaning here",
    ),
    "a sum of gradients": (
        "from apex.parallel import DistributedDataParallel as D\nD(m, gradient_average=False)\n",
        "line 2: torch has no `gradient_average`: torch always averages; for a sum, multiply",
    ),
    "an argument that apex had not, either": (
        "from apex.parallel import DistributedDataParallel as DDP\nDDP(m, device_ids=[0])\n",
        "line 2: torch has no `device_ids`",
    ),
    "message size by position": (
        "from apex.parallel import DistributedDataParallel as DDP\nDDP(m, 10000)\n",
        "line 2: its second argument has another meaning in torch",
    ),
    "a choice of two classes": (
        "try:\n    from apex.parallel import DistributedDataParallel as DDP\nexcept ImportError:\n"
        "    from torch.nn.parallel import DistributedDataParallel as DDP\nDDP(m)\n",
        "line 5: `DDP` has more than one meaning in this file",
    ),
    "channels last": (
        "import apex, torch\napex.parallel.convert_syncbn_model(m, channel_last=True)\n",
        "torch has no `channel_last`",
    ),
    "inner parts of apex.amp": (
        "from apex import amp\namp.initialize(m)\namp._amp_state.loss_scalers[0].loss_scale()\n",
        "line 3: `apex.amp._amp_state.loss_scalers` has no new name",
    ),
}


@pytest.mark.parametrize(("text", "reason"), LEFT.values(), ids=LEFT)
def test_what_is_not_certain_is_left_alone(text: str, reason: str) -> None:
    assert any(f"not changed: {reason}" in finding.fix for finding in left(text))


def test_a_use_says_that_its_import_stays() -> None:
    text = "from torch.cuda.amp import autocast\nautocast(True)\nmake = autocast\n"

    assert [(f.line, f.fix) for f in left(text) if f.line == 2] == [
        (
            2,
            'write: autocast("cuda", enabled=True); not changed: the import in line 1 is not '
            "changed either",
        )
    ]


@pytest.mark.parametrize(
    ("oldest", "code"), [((2, 3), "GradScaler()"), ((2, 1), "autocast()")], ids=["2.3", "2.1"]
)
def test_an_older_torch_has_fewer_new_names(oldest: tuple[int, int], code: str) -> None:
    text = f"import torch\ntorch.cuda.amp.{code}\n"
    custom = "import torch\n@torch.cuda.amp.custom_fwd\ndef f(ctx): ...\n"

    assert changed(text, oldest) != text
    assert "it needs torch 2.4" in left(custom, oldest)[0].fix
    assert (
        "it needs torch 2.3" in left("import torch\ntorch.cuda.amp.GradScaler()\n", (2, 2))[0].fix
    )


def test_a_ddp_has_a_note_that_stays_behind_the_change() -> None:
    text = "import apex\nm = apex.parallel.DistributedDataParallel(m)\nprint(apex.amp)\n"
    notes = [one.note for one in scan(text, "x.py", "drop-in", OLDEST)[0]]

    assert sum(map(bool, notes)) == 1
    assert "find_unused_parameters=True" in "".join(notes)


def test_the_arguments_of_a_ddp_are_those_of_torch() -> None:
    text = "from apex.parallel import DistributedDataParallel as D\nD(m, delay_allreduce=True)\n"
    known = inspect.signature(torch.nn.parallel.DistributedDataParallel).parameters

    for oldest, name in ((OLDEST, "broadcast_buffers"), ((2, 13), "forward_sync_buffers")):
        new = changed(text, oldest).splitlines()[1]
        assert new == f"D(m, find_unused_parameters=True, {name}=False)"
    assert {"find_unused_parameters", "broadcast_buffers"} <= set(known)
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    assert ("forward_sync_buffers" in known) == (version >= (2, 13))


def test_the_same_spelling_of_something_else_is_not_touched() -> None:
    for text in (
        "from mine.cuda.amp import autocast\nautocast()\n",
        "from .apex import amp\namp.initialize()\n",
        "amp = Mine()\namp.autocast()\namp.initialize()\n",
        "class A:\n    def f(self):\n        self.amp.autocast()\n        self.apex.amp.x()\n",
        "x = 'from torch.cuda.amp import autocast'  # from apex import amp\n",
    ):
        assert left(text) == []


AUTOCASTS = ["", "False", "True, torch.bfloat16", "True, torch.float16, False", "dtype=torch.half"]


def made(code: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return eval(code, {"torch": torch})


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("arguments", AUTOCASTS)
def test_the_new_autocast_is_the_old_one(device: str, arguments: str) -> None:
    old = f"torch.{device}.amp.autocast({arguments})"
    new = changed(f"import torch\n{old}\n").splitlines()[1]

    assert new != old
    for attribute in ("device", "fast_dtype", "_enabled", "_cache_enabled"):
        assert getattr(made(new), attribute) == getattr(made(old), attribute)


@pytest.mark.parametrize("arguments", ["", "2.0, 3.0, 0.25, 7", "init_scale=8.0, enabled=False"])
def test_the_new_scaler_is_the_old_one(arguments: str) -> None:
    old = f"torch.cpu.amp.GradScaler({arguments})"
    new = changed(f"import torch\n{old}\n").splitlines()[1]

    assert new != old
    assert made(new).state_dict() == made(old).state_dict()


def test_the_new_state_functions_are_there() -> None:
    for name in ("get_autocast_gpu_dtype()", "is_autocast_cpu_enabled()"):
        new = changed(f"import torch\ntorch.{name}\n").splitlines()[1]
        assert made(new) == made(f"torch.{name}")


LINES = st.sampled_from(
    [
        "from torch.cuda.amp import autocast, GradScaler  # x",
        "from torch.cuda import amp",
        "import torch.cuda.amp",
        "import torch, apex",
        "from apex import amp, parallel",
        "from apex.parallel import (DistributedDataParallel as DDP,\n    convert_syncbn_model)",
        "scaler = GradScaler( )",
        "with autocast(on,\n              torch.float16): pass",
        "with amp.autocast(enabled=on): pass",
        "model = convert_syncbn_model(model) ;x = 1",
        "model = apex.parallel.DistributedDataParallel( model )",
        "model = parallel.convert_syncbn_model(model)",
        "model = DDP(model)",
        "amp.initialize(model)",
        "if on: from apex import amp",
        "@torch.cuda.amp.custom_fwd\ndef f(ctx):\n\treturn torch.cuda.amp.autocast()",
        "try:\n  import apex\nexcept ImportError:\n  apex = None",
        "autocast = None",
        "make = DDP",
        "\n# a comment",
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(LINES, max_size=8), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_any_mixture_stays_python_and_is_done_once(
    lines: list[str], newline: str, ends: bool
) -> None:
    text = "\n".join(["import torch", *lines]).replace("\n", newline) + (newline if ends else "")

    new = changed(text)

    if newline == "\r\n":
        assert "\n" not in new.replace("\r\n", "")
    kept = [line for line in text.splitlines() if "#" in line]
    assert [line for line in new.splitlines() if "#" in line and "from" not in line] == [
        line for line in kept if "from" not in line
    ]
