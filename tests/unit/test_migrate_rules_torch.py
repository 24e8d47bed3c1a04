"""The rules of `hpc-amp migrate` about torch.amp and hand-made fp16, on scripts that break them and
on scripts that do not."""

from __future__ import annotations

import pytest

from hpc_amp.migrate.rules import RULES
from hpc_amp.migrate.scan import scan

HALF = "torch.autocast('cuda', dtype=torch.float16)"
TORCH = "import torch\nimport torch.nn as nn\nfrom torch import optim\n"
# What every script with a scaler begins with; rules about its order look at what follows.
SCALER = (
    TORCH + "scaler = torch.amp.GradScaler('cuda')\noptimizer = optim.SGD(model.parameters())\n"
)
HALF_MODEL = "model.half()\nmodel.train()\n"
APEX = "import torch\nfrom hpc_amp import amp\noptimizer = torch.optim.SGD(model.parameters())\n"
FP16 = "fp16 = True\n"
LOOP = SCALER + "for x in data:\n    optimizer.zero_grad()\n    scaler.scale(loss(x)).backward()\n"

# rule: (scripts with the finding, each with the line of it; scripts without any finding)
EXAMPLES: dict[str, tuple[list[tuple[int, str]], list[str]]] = {
    "half-model": (
        [
            (2, TORCH[:13] + "model.half()\nmodel.train()\nloss.backward()\n"),
            (1, "model = Net().cuda().half()\nmodel.parameters()\nloss.backward()\n"),
            (2, "import torch\nnet.to(torch.half)\nnet.eval()\nloss.backward()\n"),
        ],
        [
            "model.half()\nmodel.eval()\n",  # predicts
            "model.half().float()\nmodel.train()\nloss.backward()\n",
            "copy(model).half()\nmodel.train()\nloss.backward()\n",
        ],
    ),
    "half-tensor": (
        [
            (1, "x = x.half()\nloss.backward()\n"),
            (2, "import torch\nx = x.to('cuda', torch.float16)\nloss.backward()\n"),
            (2, "import torch\nx = x.type(torch.cuda.HalfTensor)\nloss.backward()\n"),
            (1, "x = x.type('torch.cuda.HalfTensor')\nloss.backward()\n"),
        ],
        [
            "x = x.half(2)\nloss.backward()\n",
            "import torch\nx = x.to(torch.float32)\nloss.backward()\n",
            "import torch\ntorch.save({'x': x.half()}, path)\nloss.backward()\n",
        ],
    ),
    "half-default": (
        [
            (2, "import torch\ntorch.set_default_dtype(torch.float16)\nloss.backward()\n"),
            (2, "import torch\ntorch.set_default_tensor_type('torch.HalfTensor')\nl.backward()\n"),
        ],
        ["import torch\ntorch.set_default_dtype(torch.float64)\nloss.backward()\n"],
    ),
    "manual-loss-scale": (
        [
            (2, FP16 + "(loss * loss_scale).backward()\n"),
            (2, FP16 + "loss = loss * args.static_loss_scale\nloss.backward()\n"),
            (2, FP16 + "loss *= scale\nloss.backward()\n"),
            (2, FP16 + "total_loss = scale * f(model(x))\ntotal_loss.backward()\n"),
            (3, FP16 + "scale = 2.0**10\n(loss * scale).backward()\n"),
            (3, FP16 + "def f(loss, scale=128):\n    (loss * scale).backward()\n"),
            (3, "class LossScaler:\n    def backward(self, loss):\n"
             "        scaled_loss = loss * self.loss_scale\n        scaled_loss.backward()\n"),
            (6, "class A:\n    def f(self, loss):\n        self.scaler.scale(loss).backward()\n"
             "class Fp16:\n    def f(self, loss):\n        loss *= self.loss_scale\n"),
            (3, HALF_MODEL + "loss = f(model(x)) * 128\nloss.backward()\n"),
            (3, HALF_MODEL + "(2.0**10 * loss).backward()\n"),
            (3, HALF_MODEL + "loss *= 1024.0\nloss.backward()\n"),
        ],
        [
            "loss = f(model(x)) * 128\nloss.backward()\n",
            "x = model(x) * 128\nloss.backward()\n",
            "loss = loss * weight\nloss.backward()\n",
            "image = image * scale\nloss.backward()\n",
            "loss = loss * upscaled\nloss.backward()\n",
            FP16 + "loss.backward()\nself.loss_scale *= self.scale_factor\n",
            FP16 + "loss.backward()\nself.loss_scale = self.loss_scale * self.scale_factor\n",
            "(loss * loss_scale).backward()\n",  # nothing here makes fp16
            FP16 + "scale = 1 / len(parts)\nfor x in parts:\n    (f(x) * scale).backward()\n",
            FP16 + "loss_scale = n / total\nloss *= loss_scale\nloss.backward()\n",
            FP16 + "def step(loss, loss_scale: float = 1.0):\n    (loss * loss_scale).backward()\n",
            FP16 + "scale_factor = 1.0\nloss = loss * scale_factor\nloss.backward()\n",
            FP16 + "loss = loss * loss_scale[task]\nloss.backward()\n",
            SCALER + "loss = loss * loss_scale  # fp16\nscaler.scale(loss).backward()\n",
        ],
    ),
    "manual-unscale": (
        [
            (2, "loss.backward()\np.grad.data.div_(loss_scale)\n"),
            (2, "loss.backward()\np.grad.mul_(1.0 / self.loss_scale)\n"),
            (2, "loss.backward()\np.grad = p.grad / scale\n"),
            (2, "loss.backward()\np.grad /= scale\n"),
            (4, HALF_MODEL + "loss.backward()\nm.grad = p.grad.float() / 128\n"),
            (4, HALF_MODEL + "loss.backward()\np.grad.data.mul_(1 / 128)\n"),
        ],
        ["loss.backward()\np.grad /= world_size\n", "loss.backward()\nx.div_(scale)\n"],
    ),
    "manual-master-weights": (
        [
            (1, "copies = [p.clone().float().detach() for p in net.parameters()]\nl.backward()\n"),
            (
                2,
                "import torch\nm = [p.type(torch.cuda.FloatTensor) for p in net.parameters()]\n"
                "loss.backward()  # scaled\n",
            ),
        ],
        ["copies = [p.clone() for p in net.parameters()]\nloss.backward()  # half\n"],
    ),
    "manual-batchnorm-float": (
        [(2, "if isinstance(m, torch.nn.BatchNorm2d):\n    m.float()\nloss.backward()  # half\n")],
        ["if isinstance(m, torch.nn.Conv2d):\n    m.float()\nloss.backward()  # half\n"],
    ),
    "clip-before-unscale": (
        [
            (
                9,
                LOOP
                + "    nn.utils.clip_grad_norm_(model.parameters(), 1)\n"
                + "    scaler.step(optimizer)\n    scaler.update()\n",
            ),
            (
                9,
                LOOP
                + "    model.clip_grad_norm_(1.0)\n"
                + "    scaler.unscale_(optimizer)\n"
                + "    scaler.step(optimizer)\n    scaler.update()\n",
            ),
        ],
        [
            LOOP
            + "    scaler.unscale_(optimizer)\n    nn.utils.clip_grad_norm_(parameters, 1)\n"
            + "    scaler.step(optimizer)\n    scaler.update()\n",
            LOOP
            + "    optimizer.clip_grad_norm(1.0)\n"
            + "    scaler.step(optimizer)\n    scaler.update()\n",
            LOOP.replace("'cuda'", "'cuda', enabled=use_amp")
            + "    if use_amp:\n        scaler.unscale_(optimizer)\n"
            + "    nn.utils.clip_grad_norm_(model.parameters(), 1)\n"
            + "    scaler.step(optimizer)\n    scaler.update()\n",
            "def step(loss, scaler, args):\n    scaler.scale(loss).backward()\n"
            + "    if args.amp:\n        scaler.unscale_(args.optimizer)\n"
            + "    clip_grad_norm_(args.parameters, 1)\n"
            + "    scaler.step(args.optimizer)\n    scaler.update()\n",
            LOOP.replace("'cuda'", "'cuda', enabled=False")
            + "    nn.utils.clip_grad_norm_(model.parameters(), 1)\n"
            + "    scaler.step(optimizer)\n    scaler.update()\n",
            SCALER
            + "def step(loss, scaler=None):\n"
            + "    if scaler is not None:\n        scaler.scale(loss).backward()\n"
            + "    else:\n        loss.backward()\n"
            + "    if scaler:\n        scaler.unscale_(optimizer)\n"
            + "    nn.utils.clip_grad_norm_(parameters, 1)\n"
            + "    if scaler is None:\n        optimizer.step()\n"
            + "    else:\n        scaler.step(optimizer)\n        scaler.update()\n",
            SCALER
            + "for x in data:\n"
            + "    if use_amp and x:\n        scaler.scale(loss(x)).backward()\n"
            + "        scaler.unscale_(optimizer)\n"
            + "    else:\n        loss(x).backward()\n"
            + "    nn.utils.clip_grad_value_(parameters, 1)\n"
            + "    scaler.step(optimizer)\n    scaler.update()\n",
        ],
    ),
    "unscale-each-micro-batch": (
        [
            (
                9,
                LOOP
                + "    scaler.unscale_(optimizer)\n"
                + "    if last(x):\n        scaler.step(optimizer)\n        scaler.update()\n",
            ),
        ],
        [
            LOOP
            + "    if last(x):\n        scaler.unscale_(optimizer)\n"
            + "        scaler.step(optimizer)\n        scaler.update()\n",
            LOOP + "scaler.unscale_(optimizer)\nscaler.step(optimizer)\nscaler.update()\n",
        ],
    ),
    "local-rank-argument": (
        [
            (1, 'parser.add_argument("--local_rank", type=int, default=0)\n'),
            (2, "x = 1\nparser.add_argument('--local-rank', '--local_rank', default=-1)\n"),
            (1, 'parser.add_argument("--local_rank", type=int)\n'),
        ],
        [
            'parser.add_argument("--local_rank", default=int(os.environ.get("LOCAL_RANK", 0)))\n',
            'import deepspeed\nparser.add_argument("--local_rank", type=int, default=-1)\n',
            'args = Seq2SeqTrainingArguments()\nparser.add_argument("--local_rank")\n',
            'parser.add_argument("--local_rank")\ndevice = os.environ["SLURM_LOCALID"]\n',
            'parser.add_argument("--local_ranking", default=0)\n',
        ],
    ),
    "step-without-update": (
        [(9, LOOP + "    scaler.step(optimizer)\n")],
        [
            LOOP + "    scaler.step(optimizer)\n    scaler.update()\n",
            LOOP + "    scaler.step(optimizer)\n    finish(scaler)\n",
        ],
    ),
    "optimizer-step-past-scaler": (
        [(9, LOOP + "    optimizer.step()\n")],
        [
            LOOP + "    scaler.step(optimizer)\n    scaler.update()\n",
            SCALER
            + "for x in data:\n"
            + "    if use_amp:\n        scaler.scale(loss(x)).backward()\n"
            + "    else:\n        loss(x).backward()\n"
            + "    if use_amp:\n        scaler.step(optimizer)\n        scaler.update()\n"
            + "    else:\n        optimizer.step()\n",
            LOOP
            + "    scaler.step(optimizer)\n    scaler.update()\n"
            + "    other(x).backward()\n    optimizer.step()\n",
        ],
    ),
    "scheduler-after-skipped-step": (
        [
            (11, LOOP + "    scaler.step(optimizer)\n    scaler.update()\n    scheduler.step()\n"),
            (
                12,
                LOOP.replace("for", "lr = optim.lr_scheduler.StepLR(optimizer, 1)\nfor", 1)
                + "    scaler.step(optimizer)\n    scaler.update()\n    lr.step()\n",
            ),
        ],
        [
            LOOP + "    scaler.step(optimizer)\n    scaler.update()\nscheduler.step()\n",
            LOOP
            + "    scale = scaler.get_scale()\n    scaler.step(optimizer)\n    scaler.update()\n"
            + "    if scaler.get_scale() >= scale:\n        scheduler.step()\n",
        ],
    ),
    "scaler-in-loop": (
        [
            (
                3,
                "import torch\nfor x in data:\n    scaler = torch.amp.GradScaler('cuda')\n"
                "    scaler.scale(loss(x)).backward()\n"
                "    scaler.step(optimizer)\n    scaler.update()\n",
            )
        ],
        [
            "import torch\nfor fold in folds:\n    scaler = torch.amp.GradScaler('cuda')\n"
            "    train(fold, scaler)\n",
            "import torch\nfor x in data:\n    def make():\n"
            "        return torch.amp.GradScaler('cuda')\n    loss.backward()\n",
        ],
    ),
    "scaler-not-saved": (
        [
            (6, SCALER + "torch.save({'optimizer': optimizer.state_dict()}, path)\n"),
            (
                10,
                SCALER
                + "def train(model, amp_scaler):\n    amp_scaler.scale(loss).backward()\n"
                + "    amp_scaler.step(optimizer)\n    amp_scaler.update()\n"
                + "torch.save({'optimizer': optimizer.state_dict()}, path)\n"
                + "train(model, scaler)\n",
            ),
        ],
        [
            SCALER
            + "torch.save({'o': optimizer.state_dict(), 's': scaler.state_dict()}, path)\n",
            SCALER + "save({'optimizer': optimizer.state_dict()}, scaler)\n",
        ],
    ),
    "scaler-not-loaded": (
        [
            (
                7,
                SCALER
                + "optimizer.load_state_dict(old['o'])\n"
                + "torch.save({'o': optimizer.state_dict(), 's': scaler.state_dict()}, path)\n",
            )
        ],
        [
            SCALER
            + "optimizer.load_state_dict(old['o'])\nscaler.load_state_dict(old['s'])\n"
            + "torch.save({'o': optimizer.state_dict(), 's': scaler.state_dict()}, path)\n",
        ],
    ),
    "fp16-without-scaler": (
        [
            (4, f"import torch\nwith {HALF}:\n    loss = model(x)\nloss.backward()\n"),
            (4, "import torch\nwith torch.autocast('cuda'):\n    l = model(x)\nl.backward()\n"),
        ],
        [
            f"import torch\nwith {HALF}:\n    loss = model(x)\nengine.backward(loss)\n",
            f"import torch\nwith {HALF}:\n    l = model(x)\nself.scaler.scale(l).backward()\n",
            "import torch\nwith torch.autocast('cpu'):\n    loss = model(x)\nloss.backward()\n",
            "import torch\nwith torch.autocast('cuda', dtype=torch.bfloat16):\n    l = f(x)\n"
            "l.backward()\n",
            "import torch\nwith torch.autocast('cuda', enabled=False):\n    f(x)\nl.backward()\n",
        ],
    ),
    "scaler-with-bf16": (
        [
            (
                2,
                "import torch\nscaler = torch.amp.GradScaler('cuda')\n"
                "with torch.autocast('cuda', dtype=torch.bfloat16):\n    f()\n",
            )
        ],
        [
            "import torch\nscaler = torch.amp.GradScaler('cuda', enabled=False)\n"
            "with torch.autocast('cuda', dtype=torch.bfloat16):\n    f()\n",
            "import torch\nscaler = torch.amp.GradScaler('cuda')\n"
            "with torch.autocast('cuda', dtype=kind):\n    f()\n",
        ],
    ),
    "backward-in-autocast": (
        [
            (7, SCALER + f"with {HALF}:\n    scaler.scale(model(x)).backward()\n"),
            (8, SCALER + f"with {HALF}:\n    if x:\n        model(x).backward()\n"),
            (8, SCALER + f"@{HALF}\ndef step(x):\n    model(x).backward()\n"),
        ],
        [
            SCALER + f"with {HALF}:\n    y = model(x)\nscaler.scale(y).backward()\n",
            SCALER
            + f"with {HALF}:\n    with torch.autocast('cuda', enabled=False):\n"
            + "        y.backward()\n",
            SCALER + f"with {HALF}:\n    def closure():\n        y.backward()\n",
        ],
    ),
    "bce-fp16": (
        [
            (8, SCALER + f"f = nn.BCELoss()\nwith {HALF}:\n    f(model(x), y)\n"),
            (8, SCALER + f"import torch.nn.functional as F\nwith {HALF}:\n"
             "    F.binary_cross_entropy(model(x), y)\n"),
            (
                11,
                SCALER
                + "class A:\n    def __init__(self):\n        self.f = nn.BCELoss()\n"
                + f"    def g(self):\n        with {HALF}:\n            self.f(y, z)\n",
            ),
            (9, SCALER + f"f = nn.BCELoss()\ndef g():\n    with {HALF}:\n        f(y, z)\n"),
            (4, APEX + "f = torch.nn.BCELoss()\namp.initialize(model, optimizer)\n"),
        ],
        [
            SCALER + f"f = nn.BCEWithLogitsLoss()\nwith {HALF}:\n    f(model(x), y)\n",
            SCALER + f"f = nn.BCELoss()\nwith {HALF}:\n    z = model(x)\nf(z.float(), y)\n",
            SCALER
            + f"f = nn.BCELoss()\nwith {HALF}:\n    with torch.autocast('cuda', enabled=False):\n"
            + "        f(model(x).float(), y)\n",
            SCALER + "f = nn.BCELoss()\nwith torch.autocast('cpu'):\n    f(model(x), y)\n",
            APEX + "f = torch.nn.BCELoss()\namp.initialize(model, optimizer, opt_level='O2')\n",
        ],
    ),
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
    groups = ("Manual fp16", "Mistakes with torch.amp", "Ranks and GPUs")
    assert set(EXAMPLES) == {name for name, rule in RULES.items() if rule.group in groups}
    assert all(bad and good for bad, good in EXAMPLES.values())


def test_texts_are_filled() -> None:
    for rule, _, text in BAD:
        for finding in scan(text, "x.py", "drop-in", (2, 4))[0]:
            assert "{" not in finding.what + finding.fix, rule
            assert finding.what and finding.fix
