"""The rules of `hpc-amp migrate` about old names and apex, on scripts that break them and on
scripts that do not; and what holds for all rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpc_amp.migrate.document import with_table
from hpc_amp.migrate.finding import MigrationFinding
from hpc_amp.migrate.names import STAR_IMPORTS
from hpc_amp.migrate.rules import RULES
from hpc_amp.migrate.scan import scan

ROOT = Path(__file__).parents[2]
APEX = "import torch\nfrom hpc_amp import amp\noptimizer = torch.optim.SGD(model.parameters())\n"
TRY = "import torch\ntry:\n"
EXCEPT = "    ok = True\nexcept ImportError:\n    ok = False\nif ok:\n    amp.initialize(m)\n"
O2 = APEX + "amp.initialize(model, optimizer, opt_level='O2')\n"
EITHER = (
    "if fp16:\n    with amp.scale_loss(loss, optimizer) as scaled:\n        scaled.backward()\n"
    "else:\n    loss.backward()\n"
)
CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
CLIP_MASTERS = "torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)\n"
LOSS = "with amp.scale_loss(loss, optimizer) as scaled:\n    "

# rule: (scripts with the finding, each with the line of it; scripts without any finding)
EXAMPLES: dict[str, tuple[list[tuple[int, str]], list[str]]] = {
    "old-amp-import": (
        [
            (1, "from torch.cuda.amp import autocast\nautocast()\n"),
            (1, "from torch.cuda import amp\n"),
            (1, "import torch.cuda.amp as amp\nprint(amp)\n"),
            (2, "import torch\nprint(torch.cuda.amp)\n"),
        ],
        ["from torch.amp import autocast\n", "from torch import amp\n", "import torch.cuda\n"],
    ),
    "old-autocast": (
        [
            (2, "import torch\nwith torch.cuda.amp.autocast():\n    pass\n"),
            (2, "import torch\nwith torch.cpu.amp.autocast():\n    pass\n"),
        ],
        ["import torch\nwith torch.autocast('cuda'):\n    pass\n"],
    ),
    "old-grad-scaler": (
        [(2, "import torch\ntorch.cuda.amp.GradScaler()\n")],
        ["import torch\ntorch.amp.GradScaler('cuda')\n", "import torch\ntorch.GradScaler()\n"],
    ),
    "old-custom-function": (
        [(2, "import torch\n@torch.cuda.amp.custom_fwd\ndef forward(ctx): ...\n")],
        ["import torch\n@torch.amp.custom_fwd(device_type='cuda')\ndef forward(ctx): ...\n"],
    ),
    "old-autocast-state": (
        [
            (2, "import torch\ntorch.get_autocast_gpu_dtype()\n"),
            (2, "import torch\ntorch.is_autocast_cpu_enabled()\n"),
        ],
        ["import torch\ntorch.get_autocast_dtype('cuda')\n"],
    ),
    "old-amp-name": (
        [(2, "import torch\ntorch.cuda.amp.common.amp_definitely_not_available()\n")],
        ["import torch\ntorch.cuda.is_available()\n"],
    ),
    "star-import": (
        [
            (1, "from torch.cuda.amp import *\n"),
            (1, "from apex.fp16_utils import *\n"),
            (1, "from apex.nothing import *\n"),
        ],
        ["from torch.amp import *\n"],
    ),
    "apex-import": (
        [
            (1, "from apex import amp\namp.initialize(model, optimizer)\n"),
            (1, "from apex import amp\n"),
        ],
        ["from hpc_amp import amp\namp.initialize(model, optimizer)\n", "from . import amp\n"],
    ),
    "apex-amp": (
        [(2, "import apex\napex.amp.initialize(model, optimizer)\n")],
        ["import hpc_amp.amp\nhpc_amp.amp.initialize(model, optimizer)\n"],
    ),
    "apex-ddp": (
        [(2, "from apex.parallel import DistributedDataParallel as DDP\nDDP(model)\n")],
        ["from torch.nn.parallel import DistributedDataParallel as DDP\nDDP(model)\n"],
    ),
    "apex-syncbn": (
        [(2, "import apex\napex.parallel.convert_syncbn_model(model)\n")],
        ["import torch\ntorch.nn.SyncBatchNorm.convert_sync_batchnorm(model)\n"],
    ),
    "apex-amp-name": (
        [(2, "from apex import amp\namp._amp_state.loss_scalers[0].loss_scale()\n")],
        ["from hpc_amp import amp\namp.state_dict()\n"],
    ),
    "apex-old-api": (
        [
            (2, "from apex import amp\namp.init()\n"),
            (3, "from apex import amp\nhandle = amp.init()\nhandle.scale_loss(loss, optimizer)\n"),
            (4, "from apex import amp\nh = amp.init()\no = h.wrap_optimizer(o)\no.scale_loss(l)\n"),
        ],
        ["from hpc_amp import amp\nmodel.scale_loss(loss)\n"],
    ),
    "apex-optimizer": (
        [
            (2, "from apex.optimizers import FusedAdam\nFusedAdam(model.parameters())\n"),
            (2, "from apex import optimizers\noptimizers.FusedSGD(model.parameters(), lr=0.1)\n"),
            (2, "import apex\nmake = apex.optimizers.FusedLAMB\n"),
        ],
        ["from torch.optim import AdamW\nAdamW(model.parameters(), amp=1)\n"],
    ),
    "apex-fp16-utils": (
        [
            (2, "from apex.fp16_utils import FP16_Optimizer\no = FP16_Optimizer(o)\n"),
            (3, "from apex.fp16_utils import FP16_Optimizer as P\no = P(o)\no.backward(l)\n"),
            (2, "from apex import fp16_utils\nfp16_utils.network_to_half(model)\n"),
        ],
        ["from mine import FP16_Optimizer  # not apex\no = FP16_Optimizer(o)\n"],
    ),
    "apex-unused": (
        [(1, "import apex\n"), (1, "from apex.parallel import convert_syncbn_model\n")],
        ["import apexlike\n"],
    ),
    "apex-other": (
        [
            (2, "from apex.normalization import FusedLayerNorm\nFusedLayerNorm(8)\n"),
            (2, "from apex.parallel.LARC import LARC\no = LARC(o)\n"),
            (2, "import apex\napex.contrib.thing()\n"),
            (2, "import apex\nprint(apex)\n"),
        ],
        ["from torch.nn import LayerNorm  # apex had its own\nLayerNorm(8)\n"],
    ),
    "apex-still-needed": (
        [
            (3, TRY + "    import apex\n    from hpc_amp import amp\n" + EXCEPT),
            (4, TRY + "    from apex import amp\n    from apex.parallel import LARC\n" + EXCEPT),
            (4, TRY + "    from apex import amp\n    import amp_C\n" + EXCEPT),
            (4, TRY + "    from apex import amp\n    from apex.fp16_utils import *\n" + EXCEPT),
            (3, TRY + "    from apex import optimizers, amp\n" + EXCEPT),
            (3, TRY + "    import apex\n    if x:\n        from apex import amp\n" + EXCEPT),
            (
                3,
                "import importlib.util\nfrom apex import amp\n"
                "if importlib.util.find_spec('apex.amp'):\n    amp.initialize(m)\n",
            ),
        ],
        [
            TRY + "    from hpc_amp import amp\n" + EXCEPT,
            TRY + "    from hpc_amp import amp\n    import numpy\n" + EXCEPT,
            "import importlib.util\nfrom hpc_amp import amp\n"
            "if importlib.util.find_spec('numpy'):\n    amp.initialize(m)\n",
        ],
    ),
    "apex-extension": (
        [(2, "import amp_C\namp_C.multi_tensor_scale\n"), (1, "import amp_C\n")],
        ["import amp_Cx\namp_Cx.multi_tensor_scale\n"],
    ),
    "apex-opt-level": (
        [(4, APEX + "amp.initialize(model, optimizer, opt_level='01')\n")],
        [
            APEX + "amp.initialize(model, optimizer, opt_level='O1')\n",
            APEX + "amp.initialize(model, optimizer, opt_level=args.opt_level)\n",
        ],
    ),
    "apex-o1-override": (
        [
            (4, APEX + "amp.initialize(model, optimizer, keep_batchnorm_fp32=False)\n"),
            (4, APEX + "amp.initialize(model, optimizer, opt_level='O1', master_weights=True)\n"),
        ],
        [
            APEX + "amp.initialize(model, optimizer, opt_level='O2', keep_batchnorm_fp32=True)\n",
            APEX + "amp.initialize(model, optimizer, keep_batchnorm_fp32=None)\n",
            APEX + "amp.initialize(model, optimizer, keep_batchnorm_fp32=args.keep)\n",
            APEX + "amp.initialize(model, optimizer, opt_level=args.o, master_weights=True)\n",
        ],
    ),
    "apex-initialize-order": (
        [
            (5, APEX + "net = torch.nn.DataParallel(net)\nnet = amp.initialize(net)\n"),
            (5, APEX + "net = Net().cuda().half()\nnet = amp.initialize(net)\n"),
            (5, APEX + "net.half()\nnet, o = amp.initialize([a, net], o)\n"),
            (
                8,
                "from hpc_amp import amp\n"
                "from torch.nn.parallel import DistributedDataParallel as DDP\n"
                "def main(net):\n"
                "    if args.distributed:\n"
                "        net = DDP(net)\n"
                "    if args.fp32:\n"
                "        return net\n"
                "    return amp.initialize(net)\n",
            ),
        ],
        [
            APEX + "net = amp.initialize(net)\nnet = torch.nn.DataParallel(net)\n",
            APEX + "other = torch.nn.DataParallel(other)\nnet = amp.initialize(net)\n",
            APEX
            + "if args.amp:\n    net = amp.initialize(net)\n"
            + "else:\n    net = torch.nn.DataParallel(net)\n",
            APEX
            + "if not args.amp:\n    net = torch.nn.DataParallel(net)\n"
            + "if args.amp:\n    net = amp.initialize(net)\n",
        ],
    ),
    "apex-inside-scale-loss": (
        [
            (5, APEX + LOSS + "optimizer.step()\n"),
            (5, APEX + LOSS + "torch.nn.utils.clip_grad_norm_(model.parameters(), 1)\n"),
        ],
        [APEX + LOSS + "scaled.backward()\noptimizer.step()\n"],
    ),
    "apex-unscaled-backward": (
        [(5, APEX + LOSS + "loss.backward()\n")],
        [
            APEX + LOSS + "scaled.backward(retain_graph=True)\n",
            APEX + LOSS + "(scaled / 2).backward()\n",
            APEX + LOSS + "engine.backward(scaled)\n",
        ],
    ),
    "apex-clip": (
        [
            (5, O2 + CLIP),
            (5, O2.replace("'O2'", "level") + CLIP),
            (6, O2 + "def clip(model):\n    " + CLIP),
            (10, O2 + EITHER + CLIP),
        ],
        [
            O2 + CLIP_MASTERS,
            O2.replace("O2", "O1") + CLIP,
            O2 + EITHER.replace("else:", f"    {CLIP_MASTERS}else:") + f"    {CLIP}",
            O2 + EITHER + f"if not fp16:\n    {CLIP}",
            O2
            + f"def clip(self):\n    if self.fp16:\n        {CLIP_MASTERS}"
            + f"    else:\n        {CLIP}"
            + "def back(self, loss):\n    with amp.scale_loss(loss, self.o) as s:\n"
            + "        s.backward()\n",
        ],
    ),
    "apex-state-not-saved": (
        [
            (
                5,
                APEX
                + "amp.initialize(model, optimizer)\n"
                + "torch.save({'optimizer': optimizer.state_dict()}, path)\n",
            ),
            (
                5,
                APEX
                + "amp.initialize(model, optimizer)\n"
                + "state = dict(model=model.state_dict(), optimizer=optimizer.state_dict())\n",
            ),
        ],
        [
            APEX
            + "amp.initialize(model, optimizer)\n"
            + "torch.save({'o': optimizer.state_dict(), 'amp': amp.state_dict()}, path)\n",
            APEX
            + "amp.initialize(model, optimizer)\n"
            + "torch.save({'model': model.state_dict()}, path)\n",
        ],
    ),
    "apex-to-native": ([], []),  # only with --to native: test_migrate_apex.py
}  # fmt: skip

BAD = [(rule, line, text) for rule, (bad, _) in EXAMPLES.items() for line, text in bad]
GOOD = [(rule, text) for rule, (_, good) in EXAMPLES.items() for text in good]


def rules_in(text: str) -> list[tuple[int, str]]:
    findings, _ = scan(text, "x.py", "drop-in", (2, 4))
    return [(finding.line, finding.id) for finding in findings]


@pytest.mark.parametrize(("rule", "line", "text"), BAD)
def test_what_is_wrong_is_found(rule: str, line: int, text: str) -> None:
    assert (line, rule) in rules_in(text)


@pytest.mark.parametrize(("rule", "text"), GOOD)
def test_what_is_right_has_no_finding(rule: str, text: str) -> None:
    assert rules_in(text) == []


def test_every_rule_has_examples_of_both_kinds() -> None:
    # test_migrate_rules_torch.py has the others.
    groups = ("Manual fp16", "Mistakes with torch.amp", "Ranks and GPUs")
    assert set(EXAMPLES) == {name for name, rule in RULES.items() if rule.group not in groups}
    assert {rule for rule, (bad, good) in EXAMPLES.items() if not (bad and good)} == {
        "apex-to-native"
    }


def test_texts_are_filled() -> None:
    for rule, _, text in BAD:
        for finding in scan(text, "x.py", "drop-in", (2, 4))[0]:
            assert "{" not in finding.what + finding.fix, rule
            assert finding.what and finding.fix


def test_the_document_has_the_rules() -> None:
    document = (ROOT / "docs" / "migrate.md").read_text()

    assert with_table(document) == document, "python -m hpc_amp.migrate.document"
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", document, re.MULTILINE)) >= set(RULES)


@pytest.mark.parametrize("folder", ["hpc_amp", "examples", "benchmarks"])
def test_our_own_code_has_nothing_to_change(folder: str) -> None:
    found = [
        finding
        for path in sorted((ROOT / folder).rglob("*.py"))
        if re.search(r"^\s*(from|import) (apex|torch)\b", path.read_text(), re.MULTILINE)
        for finding in scan(path.read_text(), str(path), "drop-in", (2, 4))[0]
        if finding.mechanical
    ]

    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        TRY + "    from apex.parallel import LARC\n    import apex\n" + EXCEPT,  # both need apex
        TRY + "    from apex import amp\nfinally: ...\nfrom apex.parallel import LARC\n"
        + "amp.initialize(LARC(m))\n",
        TRY + "    from apex import amp\nexcept ImportError: ...\n"
        + "try:\n    from apex.parallel import LARC\nexcept ImportError: ...\namp.initialize(m)\n",
        TRY + "    from apex import amp\n    from apex.parallel import LARC\n"
        + "except ValueError: ...\namp.initialize(m)\n",
        TRY + "    from apex import amp\n    def f():\n        import apex\n" + EXCEPT,
        "import importlib\nimportlib.import_module('apex')\n",  # has nothing of amp
    ],
)  # fmt: skip
def test_a_try_that_does_not_fail_in_silence(text: str) -> None:
    assert "apex-still-needed" not in {rule for _, rule in rules_in(text)}


def test_an_optional_import_that_still_fails_is_told_after_the_change_too() -> None:
    text = TRY + "    from apex import amp\n    from apex.parallel import LARC\n" + EXCEPT
    _, new = scan(text, "x.py", "drop-in", (2, 4))

    assert "from hpc_amp import amp" in new
    assert (4, "apex-still-needed") in rules_in(new)


def test_import_star_names_what_the_file_uses() -> None:
    def star(text: str) -> MigrationFinding:
        findings, new = scan(text, "x.py", "drop-in", (2, 4))
        assert new == text
        (found,) = (one for one in findings if one.id == "star-import")
        return found

    utils = "from apex.fp16_utils import *\n"
    used = star(utils + "m = network_to_half(m)\nprint(to_python_float(l))\nprint(mine(l))\n")
    assert "this file uses network_to_half, to_python_float from it" in used.what
    assert "removed from apex in May 2025: the import fails" in used.what
    unused = star(utils + "from mine import network_to_half\nm = network_to_half(m)\n")
    assert "this file uses none of its names" in unused.what
    assert unused.fix == "delete it"
    torch_own = star("from torch.cuda.amp import *\ns = GradScaler()\n")
    assert torch_own.fix == "from torch.cuda.amp import GradScaler"


def test_what_comes_from_import_star_is_told_but_not_changed() -> None:
    text = (
        "from apex.fp16_utils import *\nfrom torch.cuda.amp import *\nfrom apex.amp import *\n"
        "with autocast():\n    print(to_python_float(l))\nm = initialize(m)\n"
        "def f(autocast):\n    autocast()\n"
    )
    findings, new = scan(text, "x.py", "drop-in", (2, 4))

    assert new == text
    assert [(one.line, one.id) for one in findings if one.line > 3] == [
        (4, "old-autocast"),
        (5, "apex-fp16-utils"),
        (6, "apex-amp"),
    ]
    assert "not changed: it comes from the `import *` of line 2" in findings[3].fix


def test_the_names_of_import_star_are_those_of_torch() -> None:
    from torch.cuda import amp

    assert all(hasattr(amp, name) for name in STAR_IMPORTS["torch.cuda.amp"])
