"""GANs in mixed precision as people got them wrong: naive code falls into a pitfall, ours does not.

Each test has both. Pitfalls of every training (scalers, accumulation, resume) are in
test_pitfalls.py, those of several ranks in tests/ranks, and a gradient penalty that drives the loss
scale down (apex#654) is in test_gan_layers.py.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.gan import TinyGan
from support.gan_checks import check_number_formats, digests
from support.paired import paired
from support.training import engine
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from hpc_amp.amp.scaler import LossScaler
from hpc_amp.config.schema import Precision
from hpc_amp.gan import paired as paired_models
from hpc_amp.gan.discriminators import MultiScaleDiscriminator, judge_together
from hpc_amp.gan.frechet import FeatureNetwork, frechet_distance, moments
from hpc_amp.gan.losses import (
    discriminator_loss,
    feature_matching_loss,
    generator_loss,
    kl_loss,
)
from hpc_amp.gan.norms import InstanceNorm
from hpc_amp.gan.penalties import gradient_penalty, input_gradient, r1_penalty
from hpc_amp.gan.spectral import spectral_norm
from hpc_amp.tasks.base import Losses, Networks
from hpc_amp.tasks.pix2pixhd.networks import instance_means
from hpc_amp.train.ema import WeightAverage

HALF, FLOAT = torch.float16, torch.float32


pytestmark = pytest.mark.usefixtures("one_thread", "seed_zero")


def native_scaler(scale: float = 65536.0) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale)


def gradients(network: nn.Module) -> list[Tensor | None]:
    return [parameter.grad for parameter in network.parameters()]


# -- what a step does -----------------------------------------------------------------------------


def test_networks_run_under_autocast_and_not_only_their_losses(tmp_path: Path) -> None:
    """The trainers of vid2vid in imaginaire: mixed precision that computes in fp32."""
    network, seen = nn.Conv2d(3, 1, 3), []
    network.register_forward_hook(lambda *call: seen.append(call[2].dtype))
    logits = network(torch.randn(2, 3, 8, 8))
    with torch.autocast("cpu", dtype=HALF):
        F.relu(1 - logits).mean()
    assert seen == [FLOAT]

    made = paired(tmp_path, "spade", precision="fp16", adversarial={"r1": 0.0})  # R1 is fp32
    check_number_formats(made, "fp16")


class Forgetful(TinyGan):
    """A task that does not care which weights a loss reaches."""

    def losses(self, phase: str, batch: Tensor, networks: Networks) -> Iterator[Losses]:
        made = networks["generator"](batch.flip(1))
        if phase == "critic":
            yield self.loss("real", networks["critic"](batch + 2))
            yield self.loss("fake", -networks["critic"](made))
        else:
            yield self.loss("fooled", networks["critic"](made))


def test_the_loss_of_one_side_does_not_reach_the_weights_of_the_other(tmp_path: Path) -> None:
    """Generated images that were not detached, and a discriminator that was not frozen: what they
    leave behind becomes a part of the other side's next step."""
    generator, critic = nn.Linear(6, 6), nn.Linear(6, 1)
    for _ in range(2):
        F.softplus(critic(generator(torch.randn(4, 6)))).mean().backward()
    assert all(g is not None and g.any() for g in gradients(generator) + gradients(critic))

    made = engine(tmp_path, Forgetful, precision={"mode": "fp16", "init_scale": 64.0})
    batch = next(made.data.epoch(0))
    for update, other in zip(made.updates, ("generator", "critic"), strict=True):
        for network in made.networks.values():
            network.zero_grad()
        assert update.run(batch, lambda: None)
        assert gradients(made.networks[other]) == [None, None]


def test_an_overflow_of_one_side_leaves_the_scale_of_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One scaler for both: the side with large gradients decides how many small ones underflow."""
    sides = [nn.Linear(1, 1, bias=False) for _ in range(2)]
    optimizers = [torch.optim.SGD(side.parameters(), lr=0.1) for side in sides]
    shared = native_scaler()
    for side, optimizer, value in zip(sides, optimizers, (torch.inf, 1.0), strict=True):
        shared.scale(side(torch.full((1, 1), value)).sum()).backward()
        shared.step(optimizer)
    shared.update()
    assert shared.get_scale() == 32768

    # Low enough for the losses themselves.
    precision = {"mode": "fp16", "init_scale": 256.0}
    made = paired(tmp_path, "spade", precision=precision, adversarial={"r1": 0.0})
    monkeypatch.setattr(
        paired_models, "discriminator_loss", lambda *args: discriminator_loss(*args) * torch.inf
    )
    made.train_step(next(made.data.epoch(0)))
    scales = [scaler.value for update in made.updates for scaler in update.scalers.values()]
    assert scales == [128, 256]


def test_losses_of_one_pass_with_scales_of_their_own_add_up(tmp_path: Path) -> None:
    """Gradients at two scales were added before they were unscaled, and the first backward pass
    freed the graph of the second."""
    layer = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    out = layer(torch.ones(1, 1))
    first, second = native_scaler(1024.0), native_scaler(64.0)
    first.scale((2 * out).square().sum()).backward()
    with pytest.raises(RuntimeError, match="second time"):
        second.scale((3 * out).square().sum()).backward()
    optimizer.zero_grad()
    out = layer(torch.ones(1, 1))
    first.scale((2 * out).sum()).backward(retain_graph=True)
    second.scale((3 * out).sum()).backward()
    first.unscale_(optimizer)
    assert gradients(layer)[0].item() == pytest.approx(2 + 3 / 16), "and not 5"  # type: ignore[union-attr]

    found = []
    for mode in ("separate", "together"):
        made = paired(
            tmp_path / mode,
            "spade",
            precision={"mode": "fp16", "init_scale": 1024.0},
            adversarial={"separate_scalers": mode == "separate", "r1": 0.0},
        )
        update = made.updates[1]
        assert len(update.scalers) == (4 if mode == "separate" else 1)
        for place, scaler in enumerate(update.scalers.values()):
            scaler.value /= 4**place
        torch.manual_seed(1)
        assert update.run(next(made.data.epoch(0)), lambda: None)
        found.append(torch.cat([g.flatten() for g in gradients(made.networks["generator"])]))  # type: ignore[union-attr]
    error = (found[0] - found[1]).norm() / found[1].norm()
    assert error < 1e-2


def test_a_step_that_overflows_is_not_tried_again(tmp_path: Path) -> None:
    """imaginaire repeats an update until the optimizer has made it, which a NaN in a batch makes
    endless."""
    layer = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler, tries = native_scaler(), 0
    made_step: list[bool] = []
    optimizer.register_step_post_hook(lambda *call: made_step.append(True))
    while not made_step and tries < 300:
        optimizer.zero_grad()
        scaler.scale(layer(torch.full((1, 1), torch.nan)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        tries += 1
    assert tries == 300 or scaler.get_scale() == 0, "until the scale is 0"

    made = paired(tmp_path, "spade", precision={"mode": "fp16", "init_scale": 256.0})
    batches = list(made.data.epoch(0))
    before = digests(made, buffers=False)
    batches[0][0].images.fill_(torch.nan)
    made.train_step(batches[0])
    assert [update.skipped for update in made.updates] == [1, 1]
    assert digests(made, buffers=False) == before
    made.train_step(batches[1])
    assert [update.skipped for update in made.updates] == [1, 1]
    state = [value for network in made.networks.values() for value in network.state_dict().values()]
    assert all(value.isfinite().all() for value in state)


# -- averages of weights --------------------------------------------------------------------------


def test_the_average_does_not_move_when_a_step_is_skipped(tmp_path: Path) -> None:
    """The first steps of fp16 overflow. The warm-up of an average that counts them is over before
    the first step, and the random weights of the beginning stay in it."""

    def share_of_the_start(skipped: int) -> float:
        network = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(network.weight)
        average = WeightAverage({"of": network}, 0.999, lambda tensor: tensor)
        for _ in range(skipped):
            average.update()
        with torch.no_grad():
            network.weight.fill_(1.0)
        average.update()
        return 1 - float(average.networks["of"].weight)  # type: ignore[arg-type]

    assert share_of_the_start(40) > 0.8 > 0.2 > share_of_the_start(0)

    made = paired(tmp_path, "spade", precision={"mode": "fp16", "init_scale": 2.0**40}, ema=0.9)
    assert made.average is not None
    made.train_step(next(made.data.epoch(0)))
    assert [update.skipped for update in made.updates] == [1, 1]
    assert made.average.updates == 0


def test_the_average_of_half_precision_weights_moves(tmp_path: Path) -> None:
    """An average in the format of the weights: a change of a ten-thousandth is rounded away."""
    network = nn.Linear(4, 4).half()
    shadow = network.weight.detach().clone()
    with torch.no_grad():
        network.weight.mul_(2)
    for _ in range(1000):
        shadow.lerp_(network.weight.detach(), 1e-4)
    still = shadow == network.weight / 2
    assert still.float().mean() > 0.9

    made = paired(
        tmp_path,
        "spade",
        precision={"mode": "O2", "init_scale": 256.0},
        ema=0.9999,
        adversarial={"r1": 0.0},
    )
    assert made.average is not None
    live, mean = (n["generator"] for n in (made.networks, made.average.networks))
    made.average.updates = 10**6  # the warm-up is over
    before = [parameter.clone() for parameter in mean.parameters()]
    assert {p.dtype for p in live.parameters()} == {HALF}
    assert {p.dtype for p in before} == {FLOAT}
    made.train_step(next(made.data.epoch(0)))
    assert [update.skipped for update in made.updates] == [0, 0]
    moved = [
        (now != then).float().mean() for now, then in zip(mean.parameters(), before, strict=True)
    ]
    assert torch.stack(moved).mean() > 0.9


def rotated(normalise: Any) -> Tensor:
    """The average of a normalised layer whose largest singular vectors turn during training: its
    weight in an evaluation."""
    layer = normalise(nn.Linear(4, 4))
    average = WeightAverage({"of": layer}, 0.8, lambda tensor: tensor)
    original = layer.parametrizations["weight"].original
    for step in range(20):
        angle = torch.tensor(0.3 * step)
        direction = torch.stack((angle.cos(), angle.sin(), angle.cos() / 2, angle.sin() / 2))
        with torch.no_grad():
            original.copy_(0.3 * torch.eye(4) + 2 * direction.outer(direction))
        for _ in range(5):
            layer(torch.zeros(1, 4))
        average.update()
    weight: Tensor = average.networks["of"].eval().weight  # type: ignore[assignment]
    return weight.detach()


def test_the_average_of_a_spectral_norm_is_one() -> None:
    """Averages of unit vectors are shorter than 1, so the singular value that they give is too
    small, and the weights of the average are too large."""
    naive = rotated(parametrizations.spectral_norm)
    assert torch.linalg.matrix_norm(naive, 2) > 1.5

    ours = rotated(spectral_norm)
    assert torch.linalg.matrix_norm(ours, 2) < 1.1


# -- spectral normalisation -----------------------------------------------------------------------


def test_an_epsilon_that_fp16_does_not_have() -> None:
    """pytorch#125544, apex#181: 1e-12 is 0 in fp16, and 0 / 0 is NaN."""
    layer = nn.Linear(4, 4)
    nn.init.zeros_(layer.weight)
    u = torch.randn(4).half()
    v = F.normalize(layer.weight.half().t() @ u, dim=0, eps=1e-12)
    assert v.isnan().all()

    ours = spectral_norm(layer, "fp16")
    for _ in range(3):
        assert ours(torch.ones(1, 4)).isfinite().all()
    assert ours.weight.isfinite().all()


class NaiveSpectral(nn.Module):
    """A spectral norm whose vectors are buffers that its value is computed from."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("u", torch.randn(len(layer.weight)))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.layer.weight
        with torch.no_grad():
            v = F.normalize(weight.t() @ self.u, dim=0)
            self.u.copy_(F.normalize(weight @ v, dim=0))
        sigma = self.u @ weight @ v
        return F.linear(x, weight / sigma)


def test_two_forward_passes_before_a_backward_pass() -> None:
    """Real and generated images one after another: the second pass changes vectors that the
    backward pass of the first needs."""
    real, fake = torch.randn(3, 4), torch.randn(3, 4)
    naive = NaiveSpectral(nn.Linear(4, 1))
    with pytest.raises(RuntimeError, match="inplace operation"):
        (naive(real) - naive(fake)).sum().backward()

    ours = spectral_norm(nn.Linear(4, 1))
    (ours(real) - ours(fake)).sum().backward()
    (grad,) = (p.grad for name, p in ours.named_parameters() if name.endswith("original"))
    assert grad is not None and grad.any() and grad.isfinite().all()


# -- gradient penalties ---------------------------------------------------------------------------


def judge(gain: float) -> nn.Module:
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Softplus(), nn.Conv2d(8, 1, 3))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(gain)
    return network


def naive_r1(network: nn.Module, images: Tensor, scaler: LossScaler | None = None) -> Tensor:
    """The recipe of fp32, under autocast; with a scaler, the gradient is that of the scaled sum."""
    points = images.clone().requires_grad_(True)
    with torch.autocast("cpu", dtype=HALF):
        total = network(points).flatten(1).mean(1).sum()
        if scaler is not None:
            total = scaler.scale(total)
        (gradient,) = torch.autograd.grad(total, points, create_graph=True)
        return 0.5 * gradient.flatten(1).square().sum(1).mean()


@pytest.mark.parametrize("kind", ["underflow", "scaled"])
def test_r1_is_that_of_fp32(kind: str) -> None:
    """apex#654. The gradient with respect to an image is small, since logits are means over its
    pixels; with the scale of the loss it is too large for half precision."""
    images, network = torch.randn(2, 3, 32, 32), judge(0.01 if kind == "underflow" else 1.0)
    exact = 0.5 * input_gradient(lambda x: [network(x)], images).square().sum((1, 2, 3)).mean()
    if kind == "underflow":
        assert naive_r1(network, images) == 0 < exact
    else:
        assert not naive_r1(network, images, LossScaler(Precision(mode="fp16"))).isfinite()

    with torch.autocast("cpu", dtype=HALF):
        ours = r1_penalty(lambda x: [network(x)], images)
    torch.testing.assert_close(ours, exact)
    ours.backward()
    assert all(g is not None and g.any() and g.isfinite().all() for g in gradients(network)[::2])


def test_a_penalty_changes_the_weights() -> None:
    """Without `create_graph`, it is a constant."""
    network, images = judge(1.0), torch.randn(2, 3, 8, 8)
    points = images.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(network(points).sum(), points)
    assert not gradient.square().sum().requires_grad

    r1_penalty(lambda x: [network(x)], images).backward()
    assert all(g is not None and g.any() for g in gradients(network)[::2])


def test_the_penalty_of_a_flat_discriminator_is_finite() -> None:
    """lightweight-gan#92: NaN without end. The norm of 0 has no derivative."""
    layer = nn.Linear(12, 1)
    nn.init.zeros_(layer.weight)
    points = torch.randn(2, 12, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(points).sum(), points, create_graph=True)
    lengths = gradient.square().sum(1).sqrt()
    (lengths - 1).square().mean().backward()
    assert layer.weight.grad is not None and layer.weight.grad.isnan().any()

    layer.zero_grad()
    images = torch.randn(2, 3, 2, 2)
    gradient_penalty(lambda x: [layer(x.flatten(1))], images, images, torch.rand(2)).backward()
    assert layer.weight.grad is not None and layer.weight.grad.isfinite().all()


# -- losses and statistics ------------------------------------------------------------------------


def test_a_hinge_loss_in_half_precision_survives_its_scale() -> None:
    """imaginaire#126, SPADE#112: a loss of 1 times 65536 is more than fp16 has."""
    real, fake = torch.full((2, 1, 4, 4), -0.5).half(), torch.full((2, 1, 4, 4), 0.5).half()
    naive = F.relu(1 - real).mean() + F.relu(1 + fake).mean()
    # A tensor of shape [1], as in trainers that add losses up; one of shape [] is scaled in fp32.
    assert native_scaler().scale(naive.reshape(1)).isinf()

    scaler = LossScaler(Precision(mode="fp16"))
    for loss in (discriminator_loss([real], [fake]), generator_loss([fake])):
        assert loss.dtype == FLOAT and scaler.scale(loss).isfinite()


def test_the_logarithm_of_a_probability_is_finite() -> None:
    """pytorch#61098, lightning#13871: the sigmoid of -20 is 0 in fp16."""
    logits = torch.tensor([[-20.0]]).half().requires_grad_(True)
    assert (-torch.log(torch.sigmoid(logits))).isinf()

    loss = generator_loss([logits], "nonsaturating")
    loss.backward()
    assert loss.item() == pytest.approx(20, abs=1e-3)
    assert logits.grad is not None and logits.grad.item() == -1


def test_the_variance_of_a_style_does_not_overflow() -> None:
    """exp(12) is more than fp16 has."""
    mean, log_variance = torch.zeros(1, 4).half(), torch.full((1, 4), 12.0).half()
    naive = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
    assert naive.isinf()

    assert kl_loss(mean, log_variance).item() == pytest.approx(2 * (162754.79 - 13), rel=1e-5)


def test_statistics_of_an_instance_norm_are_those_of_fp32() -> None:
    """Squares of more than 256 overflow, and what is divided by infinity is 0."""
    x = (400 * torch.randn(1, 2, 8, 8)).half()
    mean = x.mean((2, 3), keepdim=True)
    variance = (x * x).mean((2, 3), keepdim=True) - mean * mean
    naive = (x - mean) * torch.rsqrt(variance + 1e-5)
    assert not naive.isfinite().all() or not naive.any()

    exact = F.instance_norm(x.double())
    torch.testing.assert_close(InstanceNorm()(x).double(), exact, atol=2e-3, rtol=2e-3)


def test_real_features_are_no_part_of_the_generator_s_loss() -> None:
    """Otherwise the discriminator may be trained to tell less."""
    network = MultiScaleDiscriminator(3, scales=1, width=4, layers=2)
    real, fake = torch.randn(1, 3, 16, 16), torch.randn(1, 3, 16, 16)
    real.requires_grad_(True)
    (_, of_real), (_, of_fake) = judge_together(network, real, fake)
    naive = torch.stack([F.l1_loss(a, b) for a, b in zip(of_fake[0], of_real[0], strict=True)])
    naive.sum().backward(retain_graph=True)
    assert real.grad is not None and real.grad.any()

    real.grad = None
    feature_matching_loss(of_real, of_fake).backward()
    assert real.grad is None or not real.grad.any()


def test_means_over_the_pixels_of_an_object_are_exact() -> None:
    """A sum in half precision stands still at 2048, where the next number is 2050."""
    ones = torch.ones(1, 1, 64, 64)
    sums = torch.zeros(1, dtype=HALF)
    for row in ones.half().flatten(1)[0].split(1):
        sums += row
    assert sums.item() / ones.numel() == 0.5

    instances = torch.zeros(1, 64, 64, dtype=torch.int64)
    assert torch.equal(instance_means(ones, instances), ones)


# -- evaluation -----------------------------------------------------------------------------------


def test_the_distance_of_few_images_is_a_number() -> None:
    """ignite#3794, scipy#22427: the root of a product of covariances that are not of full rank has
    imaginary parts or is NaN."""
    features = FeatureNetwork(3)
    real, made = (features(torch.randn(8, 3, 8, 8)) for _ in range(2))
    values = torch.linalg.eigvals(real.T.cov().float() @ made.T.cov().float())
    assert values.real.sqrt().isnan().any()

    assert 0 < frechet_distance(moments(real), moments(made)) < 100
    assert abs(frechet_distance(moments(real), moments(real))) < 1e-6


def test_the_precision_of_a_run_does_not_change_its_distance() -> None:
    """SPADE#39: a score without its protocol. Features under autocast are rounded, and sums of
    their products even more."""
    images = torch.randn(64, 3, 16, 16)
    features = FeatureNetwork(3)
    exact = moments(features(images))
    narrow = nn.Sequential(*copy.deepcopy(features).float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        naive = moments(narrow(images)).double()
        ours = moments(features(images))
    assert (naive - exact).norm() > 1e-3 * exact.norm()
    assert torch.equal(ours, exact)
