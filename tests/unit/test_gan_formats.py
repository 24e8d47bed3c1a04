"""What is never computed in half precision, whatever the model: statistics of norms, losses (KL and
penalties too) and metrics. That convolutions are in half is tested for all tasks in
test_dcgan.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from support.dcgan import GAN
from support.dcgan import TRAIN as DCGAN
from support.fs_vid2vid import ONE as ONE_WITH_REFERENCES
from support.fs_vid2vid import plain_train as references
from support.funit import plain_train as few_shot
from support.gan_checks import merged
from support.paired import plain_train as paired
from support.training import CPU, engine, settings
from support.unpaired import plain_train as unpaired
from support.vid2vid import ONE as ONE_VIDEO
from support.vid2vid import plain_train as video
from support.wc_vid2vid import ONE as ONE_WITH_POINTS
from support.wc_vid2vid import plain_train as guided
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hpc_amp.distributed.world import World
from hpc_amp.tasks.build import build_task
from hpc_amp.tasks.registry import TASKS

PENALTY = {"adversarial": {"r1": 1.0}}
FEW = {"images": {"synthetic": {"train": 3, "test": 3}}}
TINY = {"images": {"image_size": [12]}}
"""For models of video: convolutions in fp16 are slow on CPUs."""
GUIDED = merged(ONE_WITH_POINTS, TINY)
MODELS: dict[str, dict[str, Any]] = {
    "dcgan": {**DCGAN, "gan": {**GAN, "eps": 1e-4}},
    "dcgan, group norm": {**DCGAN, "gan": {**GAN, "eps": 1e-4, "norm": "group"}},
    "spade": paired("spade", **FEW, **PENALTY),
    "spade, batch norm": paired("spade", spade={"norm": "batch"}, **FEW, **PENALTY),
    "pix2pixhd": paired("pix2pixhd", **FEW, **PENALTY),
    "unit": unpaired("unit", **FEW, **PENALTY),
    "munit": unpaired("munit", **FEW, **PENALTY),
    "funit": few_shot("funit", **PENALTY),
    "coco_funit": few_shot("coco_funit", **PENALTY),
    "vid2vid": video(**merged(ONE_VIDEO, TINY), **PENALTY),
    "fs_vid2vid": references(**merged(ONE_WITH_REFERENCES, TINY), **PENALTY),
    "wc_vid2vid": guided(**GUIDED, **PENALTY),
    "wc_vid2vid, partial": guided(**GUIDED, wc_vid2vid={"partial": True}, **PENALTY),
    "wc_vid2vid, kept colours": guided(**GUIDED, wc_vid2vid={"keep_colours": True}, **PENALTY),
}
HALF = (torch.float16, torch.bfloat16)


class Statistics(TorchDispatchMode):
    """Notes operations that add up values, or have squares, roots, exponentials or logarithms, with
    the formats of their inputs. Normalisations of torch add up in fp32 for inputs in half; their
    results but the first are mean and deviation, whose formats are noted."""

    KINDS: ClassVar = {
        "mean", "sum", "prod", "cumsum", "var", "var_mean", "std", "std_mean", "norm",
        "linalg_vector_norm", "logsumexp", "dist", "pow", "square", "sqrt", "rsqrt", "exp",
        "expm1", "log", "log2", "log10", "log1p", "softplus", "log_sigmoid_forward", "_softmax",
        "_log_softmax", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
        "binary_cross_entropy", "binary_cross_entropy_with_logits", "nll_loss_forward",
    }  # fmt: skip
    NORMS: ClassVar = {"native_batch_norm", "native_group_norm", "native_layer_norm"}

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[str, torch.dtype]] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__.rstrip("_")
        if name in self.KINDS:
            self._note(name, tree_leaves((args, kwargs)))
        elif name in self.NORMS:
            self._note(name, result[1:])
        return result

    def _note(self, name: str, values: Any) -> None:
        tensors = [value for value in values if isinstance(value, Tensor)]
        self.seen |= {(name, t.dtype) for t in tensors if t.is_floating_point() and t.numel()}

    def in_half(self) -> set[tuple[str, torch.dtype]]:
        return {(name, dtype) for name, dtype in self.seen if dtype in HALF}


pytestmark = pytest.mark.usefixtures("one_thread")


def test_all_models_are_here() -> None:
    assert {*MODELS} >= {*TASKS.names()} - {"classification"}


@pytest.mark.parametrize("mode", ["fp16", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_no_statistic_loss_or_metric_is_in_half(name: str, mode: str, tmp_path: Path) -> None:
    """In the forward pass of each phase, and in an evaluation."""
    config = {**MODELS[name], "precision": mode, "epochs": 3}
    config["batch_size"] = min(2, config["batch_size"])
    made = engine(tmp_path, type(build_task(settings(**config), World(), CPU)), **config)
    (batch,) = next(made.data.epoch(0))
    for update in made.updates:
        with Statistics() as watched, update._policy.autocast():
            entries = list(made.task.losses(update.phase.name, batch, made.networks))
        assert watched.seen and not watched.in_half(), update.phase.name
        for entry in entries:
            assert {loss.dtype for loss in entry.values()} == {torch.float32}
    with Statistics() as watched:
        made.evaluate()
    assert not watched.in_half()
    assert ("sum", torch.float64) in watched.seen or ("mean", torch.float64) in watched.seen


def naive_kl(mean: Tensor, log_variance: Tensor) -> Tensor:
    return -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean()


def naive_instance_norm(x: Tensor) -> Tensor:
    return (x - x.mean((2, 3), True)) / x.var((2, 3), keepdim=True).sqrt()


def test_the_watch_sees_naive_code() -> None:
    """The control: each of these is in half if nobody takes care."""
    x = torch.randn(2, 3, 4, 4, dtype=torch.float16)
    naive = {
        "exp": lambda: naive_kl(x.flatten(1), x.flatten(1)),
        "var": lambda: naive_instance_norm(x),
        "mse_loss": lambda: F.mse_loss(x, x),
        "softplus": lambda: F.softplus(x),
        "mean": lambda: F.adaptive_avg_pool2d(x, 1),
    }
    for name, compute in naive.items():
        with Statistics() as watched:
            compute()
        assert (name, torch.float16) in watched.in_half()
