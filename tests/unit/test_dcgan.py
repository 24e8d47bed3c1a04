"""The DCGAN task: losses, resume, samples, and number formats."""

from __future__ import annotations

import contextlib
import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from support.dcgan import GAN, TRAIN, dcgan
from support.fs_vid2vid import ONE as ONE_WITH_REFERENCES
from support.fs_vid2vid import plain_train as references
from support.funit import NAMES, plain_train
from support.gan_checks import merged
from support.paired import plain_train as paired
from support.training import CPU, curve, engine, fit_until, settings
from support.unpaired import plain_train as unpaired
from support.vid2vid import ONE as ONE_VIDEO
from support.vid2vid import plain_train as video
from support.wc_vid2vid import ONE as ONE_WITH_POINTS
from support.wc_vid2vid import plain_train as guided
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hpc_amp.data.decode import to_pixels
from hpc_amp.distributed.world import World
from hpc_amp.tasks.base import Networks
from hpc_amp.tasks.build import build_task
from hpc_amp.tasks.registry import TASKS
from hpc_amp.train.engine import Engine
from hpc_amp.train.state import weights_digest

pytestmark = pytest.mark.usefixtures("one_thread")


def weights(network: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


# -- steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16"])
def test_a_training_is_the_hand_written_loop(mode: str, tmp_path: Path) -> None:
    """Of the paper, with fakes that are made once, two optimizers, three losses, and under fp16 a
    scale for each of them."""
    scale = 1024.0
    made = dcgan(tmp_path, precision={"mode": mode, "init_scale": scale}, epochs=2)
    generator, discriminator = copy.deepcopy(list(made.networks.values()))
    first, second = (
        torch.optim.Adam(network.parameters(), lr=GAN["lr"], betas=(0.5, 0.999))
        for network in (discriminator, generator)
    )
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(mode)

    def cast() -> contextlib.AbstractContextManager[object]:
        return torch.autocast("cpu", dtype=dtype) if dtype else contextlib.nullcontext()

    def step(optimizer: torch.optim.Optimizer, *losses: Tensor) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        parts = []
        for loss in losses:
            parts.append(torch.autograd.grad(loss * scale, parameters, retain_graph=True))
        for parameter, *gradients in zip(parameters, *parts, strict=True):
            parameter.grad = torch.stack([gradient / scale for gradient in gradients]).sum(0)
        optimizer.step()

    def loss(logits: Tensor, label: float) -> Tensor:
        return F.binary_cross_entropy_with_logits(
            logits.float(), torch.full_like(logits, label).float()
        )

    for epoch in range(2):
        for ((images, latents),) in made.data.epoch(epoch):
            with cast():
                fakes = generator(latents)
                real = loss(discriminator(images), 1.0)
                fake = loss(discriminator(fakes.detach()), 0.0)
            step(first, real, fake)
            with cast():
                fooled = loss(discriminator(fakes), 1.0)
            step(second, fooled)
    made.fit()
    assert made.report.skipped_steps() == 0
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if mode == "fp32" else {"rtol": 1e-3, "atol": 1e-4}
    for network, expected in zip(made.networks.values(), (generator, discriminator), strict=True):
        torch.testing.assert_close(weights(network), weights(expected), **tolerance)
    for name in ("d_real", "d_fake", "g"):
        assert len(curve(tmp_path, f"train/{name}")) == 8


def test_each_phase_changes_one_network(tmp_path: Path) -> None:
    made = dcgan(tmp_path)
    batch = next(made.data.epoch(0))
    for update in made.updates:
        before = {name: weights_digest({name: n}) for name, n in made.networks.items()}
        assert update.run(batch, lambda: None)
        after = {name: weights_digest({name: n}) for name, n in made.networks.items()}
        changed = [name for name in before if before[name] != after[name]]
        assert changed == list(update.phase.networks)
    gradients = [p.grad for p in made.networks["discriminator"].parameters()]
    discriminator = [g.clone() for g in gradients if g is not None]
    assert len(discriminator) == len(gradients)
    made.updates[1].run(batch, lambda: None)
    now = [p.grad for p in made.networks["discriminator"].parameters()]
    assert all(torch.equal(a, b) for a, b in zip(discriminator, now, strict=True)), (
        "no work in vain"
    )
    assert all(p.requires_grad for p in made.networks["discriminator"].parameters())


def test_what_the_discriminator_thinks_is_a_probability(tmp_path: Path) -> None:
    made = dcgan(tmp_path, epochs=1)
    made.fit()
    judged = made.task.judged  # type: ignore[attr-defined]
    assert set(judged) == {"d_real", "d_fake", "g"}
    for name, sign in (("d_real", 1), ("d_fake", -1), ("g", 1)):
        assert 0 < judged[name] < 1
        # By Jensen's inequality.
        least = -(judged[name] if sign > 0 else 1 - judged[name]).log().item()
        assert curve(tmp_path, f"train/{name}")[-1][1] >= least - 1e-6


def test_accumulation_is_the_same_update(tmp_path: Path) -> None:
    ends = []
    for accumulate in (1, 4):
        made = dcgan(tmp_path / str(accumulate), accumulate=accumulate, gan={"norm": "group"})
        made.fit()
        ends.append(torch.cat([weights(network) for network in made.networks.values()]))
    torch.testing.assert_close(*ends, rtol=1e-3, atol=1e-4)


# -- resume and samples ---------------------------------------------------------------------------

# Overflows at once, and again each time that a scale has grown back.
EVERYTHING: dict[str, Any] = {
    "precision": {"mode": "fp16", "init_scale": 2.0**22, "growth_interval": 2},
    "ema": 0.9,
    "log_every": 3,
    "epochs": 5,
}


def scales(made: Engine) -> dict[str, dict[str, Any]]:
    return {n: s.state_dict() for update in made.updates for n, s in update.scalers.items()}


def test_a_resume_is_bit_exact(tmp_path: Path) -> None:
    """In the middle of epochs and of logging intervals, with overflows before and after."""
    whole = dcgan(tmp_path / "whole", **EVERYTHING)
    whole.fit()
    assert len({state["scale"] for state in scales(whole).values()}) > 1, "scales of their own"
    skipped = []
    for attempt, stop in enumerate((3, 6, 13), 1):
        part = dcgan(tmp_path / "parts", attempt=attempt, **EVERYTHING)
        fit_until(part, stop)
        skipped.append(part.report.skipped_steps())
        folder = tmp_path / "parts" / "checkpoints" / f"step-{stop:08d}"
        saved = json.loads((folder / "trainer.json").read_text())["scalers"]
        assert {n: s for phase in saved.values() for n, s in phase.items()} == scales(part)
    last = dcgan(tmp_path / "parts", attempt=4, **EVERYTHING)
    assert last.step == 13
    last.fit()
    assert 0 < skipped[0] < skipped[-1] < last.report.skipped_steps()
    assert weights_digest(last.networks) == weights_digest(whole.networks)
    assert scales(last) == scales(whole)
    for name in ("train/d_real", "train/d_fake", "train/g", "eval/frechet_random"):
        assert curve(tmp_path / "parts", name) == curve(tmp_path / "whole", name)
    pictures = [sorted((tmp_path / run / "samples").iterdir()) for run in ("whole", "parts")]
    assert [path.name for path in pictures[1]] == [path.name for path in pictures[0]]
    assert [p.read_bytes() for p in pictures[1]] == [p.read_bytes() for p in pictures[0]]


def test_samples_are_written_to_disk_and_to_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    wider = {"generator_width": 8, "discriminator_width": 8, "lr": 0.003}
    made = dcgan(tmp_path, epochs=20, evaluate_every=10, log_every=100, gan=wider)
    made.fit()
    made.tracker.close()
    names = [path.name for path in sorted((tmp_path / "samples").iterdir())]
    assert names == ["step-00000040.png", "step-00000080.png"]
    with torch.no_grad():
        images = made.task.pictures({name: n.eval() for name, n in made.networks.items()})
    assert images is not None and images.shape == (9, 3, 16, 16)
    with Image.open(tmp_path / "samples" / names[1]) as picture:
        assert picture.size == (3 * 18 + 2, 3 * 18 + 2), "three in a row, framed"
        last = to_pixels(picture.crop((38, 38, 54, 54)))
    assert (last - images[8] * 255).abs().max() <= 1
    assert (images[0] - images[8]).abs().max() > 0.05
    board = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"images": 0})
    board.Reload()
    assert [event.step for event in board.Images("samples")] == [40, 80]


def test_a_task_without_pictures_has_no_samples(tmp_path: Path) -> None:
    engine(tmp_path).fit()
    assert not (tmp_path / "samples").exists()


# -- number formats -------------------------------------------------------------------------------

FEW: dict[str, Any] = {"synthetic": {"train": 3, "test": 3}}
# A first frame, one with a frame before it, and one with motion between two before it.
SHORT: dict[str, Any] = {"images": {"frames": {"first": 3, "evaluation": 3}}}
TINY: dict[str, dict[str, Any]] = {
    "classification": {
        "model": {"name": "resnet8", "width": 8},
        "data": {"name": "synthetic", "synthetic": {"train": 32, "test": 9, "image_size": 16}},
    },
    "dcgan": {**TRAIN, "gan": {**GAN, "eps": 1e-4}},
    # An R1 penalty is computed in fp32.
    **{name: plain_train(name, adversarial={"r1": 0.0}) for name in NAMES},
    "munit": unpaired("munit", adversarial={"r1": 0.0}, images=FEW),
    "unit": unpaired("unit", adversarial={"r1": 0.0}, images=FEW),
    "spade": paired("spade", adversarial={"r1": 0.0}, images=FEW),
    # Without the enhancer, each network is in the first step; instance features need fp32 weights.
    "pix2pixhd": paired(
        "pix2pixhd",
        adversarial={"r1": 0.0},
        images=FEW,
        pix2pixhd={"enhancer": None, "instance_features": None},
    ),
    "vid2vid": video(**merged(ONE_VIDEO, SHORT), adversarial={"r1": 0.0}),
    "fs_vid2vid": references(**merged(ONE_WITH_REFERENCES, SHORT), adversarial={"r1": 0.0}),
    "wc_vid2vid": guided(**merged(ONE_WITH_POINTS, SHORT), adversarial={"r1": 0.0}),
}
"""A configuration of each task."""


class Products(TorchDispatchMode):
    """Notes the number formats of all convolutions and matrix products."""

    KINDS = ("convolution", "linear", "mm", "bmm", "baddbmm", "addmm", "dot_product_attention")

    def __init__(self) -> None:
        super().__init__()
        self.formats: list[torch.dtype] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if function.overloadpacket.__name__.endswith(self.KINDS):
            inputs = [a for a in args if isinstance(a, Tensor)]
            self.formats += [t.dtype for t in (*inputs, result) if t.is_floating_point()]
        return result


def watch_forwards(networks: Networks) -> dict[str, Products]:
    """Note what every forward pass of every network computes in."""
    seen = {}
    for name, network in networks.items():
        seen[name] = products = Products()
        network.register_forward_pre_hook(
            lambda *_, products=products: products.__enter__() and None
        )
        network.register_forward_hook(
            lambda *_, products=products: products.__exit__(None, None, None), always_call=True
        )
    return seen


def task_names() -> tuple[str, ...]:
    return TASKS.names()


@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16", "O1", "O2", "O3"])
@pytest.mark.parametrize("name", task_names())
def test_autocast_covers_every_forward_pass_of_every_task(
    name: str, mode: str, tmp_path: Path
) -> None:
    """In training, in an evaluation, and for pictures."""
    config = {**TINY[name], "precision": {"mode": mode}}
    config["batch_size"] = min(2, config.get("batch_size", 2))
    task = type(build_task(settings(**config), World(), CPU))
    made = engine(tmp_path, task, **config)
    expected = {"fp32": torch.float32, "bf16": torch.bfloat16}.get(mode, torch.float16)
    seen = watch_forwards(made.networks)
    layers = {
        name: sum(isinstance(m, (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)) for m in n.modules())
        for name, n in made.networks.items()
    }
    made.train_step(next(made.data.epoch(0)))
    for network, products in seen.items():
        assert len(products.formats) >= 3 * layers[network], "inputs, weights and results"
        assert set(products.formats) == {expected}, network
        products.formats.clear()
    made.evaluate()
    assert any(products.formats for products in seen.values())
    for network, products in seen.items():
        assert set(products.formats) <= {expected}, network


def test_the_watch_sees_a_forward_pass_outside_autocast(tmp_path: Path) -> None:
    """The control for the test above."""
    made = dcgan(tmp_path, precision="bf16")
    seen = watch_forwards(made.networks)
    made.networks["generator"](torch.randn(2, GAN["latent"]))
    assert set(seen["generator"].formats) == {torch.float32}
    assert not seen["discriminator"].formats
