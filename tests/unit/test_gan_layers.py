"""Layers, losses and penalties of conditional GANs: values, and what half precision breaks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hpc_amp.amp.scaler import LossScaler
from hpc_amp.config.schema import Precision
from hpc_amp.gan.config import SpectralName
from hpc_amp.gan.discriminators import ProjectionDiscriminator
from hpc_amp.gan.layers import ConvBlock, _mirror, initialize, reflect_pad
from hpc_amp.gan.losses import (
    discriminator_loss,
    feature_matching_loss,
    generator_loss,
    kl_loss,
)
from hpc_amp.gan.norms import AdaptiveInstanceNorm, InstanceNorm, LayerNorm, Spade
from hpc_amp.gan.penalties import gradient_penalty, input_gradient, r1_penalty
from hpc_amp.gan.spectral import SpectralNorm, advance, spectral_norm

PRECISIONS: tuple[SpectralName, ...] = ("fp32", "fp16")
HALVES = (torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def _same_numbers() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


# -- spectral norm --------------------------------------------------------------------------------


def largest(weight: Tensor) -> float:
    return float(torch.linalg.svdvals(weight.detach().flatten(1).double())[0])


def gap_weight(shape: tuple[int, ...], scale: float = 1.0) -> Tensor:
    """A random weight whose largest singular value is well above the next: as in a trained network,
    where power iteration follows it."""
    weight = torch.randn(shape).flatten(1)
    u, values, v = torch.linalg.svd(weight, full_matrices=False)
    values[0] = 1.5 * values[1]
    return (scale * u @ torch.diag(values) @ v).view(shape)


@pytest.mark.parametrize("scale", [1e-3, 0.02, 1.0, 50.0])
@pytest.mark.parametrize("shape", [(64, 32, 3, 3), (16, 100)])
def test_spectral_norms_in_both_formats_agree_with_the_exact_one(
    shape: tuple[int, ...], scale: float
) -> None:
    weight = gap_weight(shape, scale)
    exact = weight / largest(weight)
    found = []
    for precision in PRECISIONS:
        norm = SpectralNorm(weight, precision)
        for _ in range(30):
            norm(weight)
        found.append(norm(weight))
        assert largest(found[-1]) == pytest.approx(1, abs=1e-3)
        torch.testing.assert_close(found[-1], exact, rtol=1e-3, atol=0)
    torch.testing.assert_close(*found, rtol=1e-3, atol=0)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_zero_weight_has_no_nan_and_can_grow(precision: SpectralName) -> None:
    """With the usual epsilon of 1e-12, which fp16 does not have, it is 0 / 0."""
    layer = spectral_norm(nn.Linear(6, 5), precision)
    original = layer.parametrizations.weight.original
    with torch.no_grad():
        original.zero_()
    for _ in range(3):
        with torch.autocast("cpu", dtype=torch.float16):
            layer(torch.ones(2, 6)).sum().backward()
        assert original.grad.isfinite().all() and (layer.weight == 0).all()
    with torch.no_grad():
        original.copy_(gap_weight((5, 6)))
    for _ in range(30):
        layer(torch.ones(2, 6))
    assert largest(layer.weight) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_new_weights_have_their_own_spectral_norm_at_once(precision: SpectralName) -> None:
    """`initialize` draws weights after the layers were made; an evaluation may come before any
    training step."""
    layer = ConvBlock(16, 32, spectral=precision)
    initialize(layer)
    layer.eval()
    assert largest(layer[0].weight) == pytest.approx(1, abs=0.1)


def test_power_iteration_takes_no_part_in_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, its products would be computed in half precision."""
    formats = []
    product = torch.mv

    def mv(*factors: Tensor) -> Tensor:
        formats.append(torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype)
        return product(*factors)

    monkeypatch.setattr(torch, "mv", mv)
    layer = spectral_norm(nn.Linear(3, 2))
    with torch.autocast("cpu", torch.bfloat16):
        for step in (advance, lambda layer: layer.weight):
            formats.clear()
            step(layer)
            assert set(formats) == {torch.float32}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_spectral_norm_changes_its_vectors_in_training_alone(precision: SpectralName) -> None:
    layer = spectral_norm(nn.Linear(8, 8), precision)
    norm = layer.parametrizations.weight[0]
    with torch.no_grad():
        layer.parametrizations.weight.original.copy_(torch.randn(8, 8))
    before = norm.u.clone()
    layer.eval()
    layer(torch.ones(1, 8))
    assert torch.equal(norm.u, before)
    layer.train()
    layer(torch.ones(1, 8))
    assert not torch.equal(norm.u, before)
    assert norm.u.dtype == norm.v.dtype == torch.float32


# -- norms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", ["instance", "layer", "adaptive", "spade"])
def test_statistics_of_large_half_inputs_are_fp32(kind: str, dtype: torch.dtype) -> None:
    """The squares of these values overflow in fp16."""
    x = (1000 * torch.randn(2, 4, 16, 16) + 3000).to(dtype)
    norms: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {
        "instance": (InstanceNorm(), ()),
        "layer": (LayerNorm(4), ()),
        "adaptive": (AdaptiveInstanceNorm(4, 3), (torch.randn(2, 3),)),
        "spade": (Spade(4, 2, hidden=8, norm="instance"), (torch.randn(2, 2, 4, 4),)),
    }
    norm, more = norms[kind]
    with torch.autocast("cpu", dtype=dtype):
        found = norm(x, *more)
    assert found.isfinite().all()
    expected = norm(x.float(), *more)
    bound = 0.02 if dtype == torch.float16 else 0.1
    assert (found.float() - expected).abs().max() < bound
    if kind in ("instance", "layer"):
        assert found.dtype == dtype
        assert found.float().std().item() == pytest.approx(1, abs=0.01)


def test_a_style_scales_and_shifts_each_channel() -> None:
    norm = AdaptiveInstanceNorm(3, 2)
    style = torch.randn(4, 2)
    made = norm(torch.randn(4, 3, 8, 8), style)
    scale, shift = norm.affine(style).chunk(2, dim=1)
    torch.testing.assert_close(made.mean((2, 3)), shift, atol=1e-5, rtol=0)
    deviations = made.std((2, 3), correction=0)
    torch.testing.assert_close(deviations, (1 + scale).abs(), atol=1e-4, rtol=0)


# -- losses ---------------------------------------------------------------------------------------

REAL = [torch.tensor([2.0, 0.5]), torch.tensor([[-1.0]])]
FAKE = [torch.tensor([-3.0, 0.0]), torch.tensor([[1.0]])]


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def test_adversarial_losses_by_hand() -> None:
    """Means over a scale's logits, then over scales."""
    hinge = ((0 + 0.5) / 2 + (0 + 1) / 2 + 2 + 2) / 2
    assert discriminator_loss(REAL, FAKE, "hinge").item() == pytest.approx(hinge)
    assert generator_loss(FAKE, "hinge").item() == pytest.approx((1.5 - 1) / 2)
    lsgan = ((1 + 0.25) / 2 + 9 / 2 + 4 + 1) / 2 / 2
    assert discriminator_loss(REAL, FAKE, "lsgan").item() == pytest.approx(lsgan)
    assert generator_loss(FAKE, "lsgan").item() == pytest.approx(((16 + 1) / 2 + 0) / 2 / 2)
    first = (softplus(-2) + softplus(-0.5)) / 2 + (softplus(-3) + softplus(0)) / 2
    second = softplus(1) + softplus(1)
    found = discriminator_loss(REAL, FAKE, "nonsaturating")
    assert found.item() == pytest.approx((first + second) / 2)
    fooled = ((softplus(3) + softplus(0)) / 2 + softplus(-1)) / 2
    assert generator_loss(FAKE, "nonsaturating").item() == pytest.approx(fooled)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", ["hinge", "lsgan", "nonsaturating"])
def test_losses_of_half_logits_are_fp32(kind: Any, dtype: torch.dtype) -> None:
    """Of logits whose squares overflow in fp16."""
    real, fake = [torch.full((4,), -400.0, dtype=dtype)], [torch.full((4,), 400.0, dtype=dtype)]
    with torch.autocast("cpu", dtype=dtype):
        losses = discriminator_loss(real, fake, kind), generator_loss(fake, kind)
    for loss in losses:
        assert loss.dtype == torch.float32 and loss.isfinite()
    expected = discriminator_loss([real[0].double()], [fake[0].double()], kind)
    assert losses[0].item() == pytest.approx(expected.item(), rel=1e-6)


def test_feature_matching_sums_over_layers_and_averages_over_scales() -> None:
    real = [[torch.zeros(2, 3), torch.ones(2, 1)], [torch.zeros(1)]]
    fake = [[torch.full((2, 3), 2.0), torch.ones(2, 1)], [torch.full((1,), -4.0)]]
    for maps in (*real, *fake):
        for each in maps:
            each.requires_grad_(True)
    loss = feature_matching_loss(real, fake)
    assert loss.item() == pytest.approx((2 + 0 + 4) / 2)
    loss.backward()
    assert all(each.grad is None for maps in real for each in maps)
    assert fake[0][0].grad is not None and fake[1][0].grad is not None


@pytest.mark.parametrize("dtype", HALVES)
def test_kl_and_feature_matching_of_half_inputs_are_fp32(dtype: torch.dtype) -> None:
    """The sum of these squares is more than fp16 can hold."""
    mean = torch.full((2, 256), 30.0, dtype=dtype)
    variance = torch.zeros(2, 256, dtype=dtype)
    with torch.autocast("cpu", dtype=dtype):
        kl = kl_loss(mean, variance)
        matching = feature_matching_loss([[mean]], [[-mean]])
    assert kl.dtype == matching.dtype == torch.float32
    assert kl.item() == pytest.approx(0.5 * 256 * 900)
    assert matching.item() == pytest.approx(60)


def test_the_kl_divergence_is_that_of_two_normal_distributions() -> None:
    mean, log_variance = torch.randn(5, 3), torch.randn(5, 3)
    normal = torch.distributions.Normal
    parts = torch.distributions.kl_divergence(
        normal(mean, (log_variance / 2).exp()), normal(0.0, 1.0)
    )
    assert kl_loss(mean, log_variance).item() == pytest.approx(parts.sum(1).mean().item(), rel=1e-5)


# -- penalties ------------------------------------------------------------------------------------


class Quadratic(nn.Module):
    """x to the logits [B, 1, h, w] of sum(weight x^2) / 2, whose gradient is weight x."""

    def __init__(self, pixels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(pixels) + 0.5)

    def forward(self, images: Tensor) -> list[Tensor]:
        flat = images.flatten(1)
        value = (flat.square() * self.weight).sum(1) / 2
        # The mean over these is the value.
        return [torch.stack([0.5 * value, 1.5 * value], 1)[:, None, None]]


def test_r1_is_the_analytic_penalty_with_its_gradient() -> None:
    network = Quadratic(12)
    images = torch.randn(4, 3, 2, 2)
    penalty = r1_penalty(network, images)
    flat = images.flatten(1)
    expected = 0.5 * (flat * network.weight).square().sum(1).mean()
    assert penalty.item() == pytest.approx(expected.item(), rel=1e-5)
    penalty.backward()
    analytic = (flat.square() * network.weight).mean(0)
    torch.testing.assert_close(network.weight.grad, analytic)


def test_the_gradient_penalty_is_the_analytic_one_with_its_gradient() -> None:
    network = Quadratic(12)
    real, fake, mix = torch.randn(4, 3, 2, 2), torch.randn(4, 3, 2, 2), torch.rand(4)
    penalty = gradient_penalty(network, real, fake, mix)
    share = mix[:, None]
    between = share * real.flatten(1) + (1 - share) * fake.flatten(1)
    weight = network.weight.detach().clone().requires_grad_(True)
    expected = ((between * weight).norm(dim=1) - 1).square().mean()
    assert penalty.item() == pytest.approx(expected.item(), rel=1e-5)
    penalty.backward()
    (analytic,) = torch.autograd.grad(expected, weight)
    torch.testing.assert_close(network.weight.grad, analytic, rtol=1e-4, atol=1e-6)


def test_a_flat_discriminator_has_a_finite_gradient_penalty() -> None:
    """The derivative of the norm of 0 would be NaN."""
    layer = nn.Linear(12, 1)
    nn.init.zeros_(layer.weight)
    images = torch.randn(2, 3, 2, 2)
    penalty = gradient_penalty(lambda x: [layer(x.flatten(1))], images, images, torch.rand(2))
    penalty.backward()
    assert penalty.item() == pytest.approx(1, abs=1e-5)
    assert layer.weight.grad is not None and layer.weight.grad.isfinite().all()


def discriminator() -> nn.Module:
    return nn.Sequential(
        ConvBlock(3, 8, 4, 2, activation_name="leaky"),
        ConvBlock(8, 16, 4, 2, activation_name="leaky"),
        ConvBlock(16, 1, activation_name="none"),
    )


@pytest.mark.parametrize("dtype", HALVES)
def test_the_inner_gradient_is_fp32_under_autocast(dtype: torch.dtype) -> None:
    network = discriminator()
    images = torch.randn(2, 3, 16, 16)
    expected = input_gradient(lambda x: [network(x)], images)
    formats = []
    network[0][0].register_forward_hook(lambda *seen: formats.append(seen[2].dtype))
    with torch.autocast("cpu", dtype=dtype):
        found = input_gradient(lambda x: [network(x)], images)
    assert formats == [torch.float32] and found.dtype == torch.float32
    assert torch.equal(found, expected)


def scale_after(steps: int, *, naive: bool) -> float:
    """The loss scale after steps with an R1 penalty under fp16. `naive` takes the inner gradient of
    the scaled logits of a half-precision pass."""
    torch.manual_seed(0)
    network = discriminator()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    scaler = LossScaler(Precision(mode="fp16", growth_interval=1000))
    for _ in range(steps):
        images = torch.randn(4, 3, 16, 16)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = discriminator_loss([network(images)], [network(torch.zeros_like(images))])
            if naive:
                points = images.requires_grad_(True)
                total = scaler.scale(network(points).flatten(1).mean(1).sum())
                (gradient,) = torch.autograd.grad(total, points, create_graph=True)
                penalty = gradient.square().flatten(1).sum(1).mean()
            else:
                penalty = r1_penalty(lambda x: [network(x)], images)
        optimizer.zero_grad()
        scaler.scale(loss + 10 * penalty).backward()
        overflow = bool(scaler.unscale([p.grad for p in network.parameters()]))
        scaler.update(overflow)
        if not overflow:
            optimizer.step()
    return scaler.value


def test_a_gradient_penalty_does_not_drive_the_loss_scale_down() -> None:
    """apex#654: there it went to 0."""
    assert scale_after(30, naive=False) >= 2.0**12
    assert scale_after(30, naive=True) < 2.0**8, "the control"


# -- discriminators -------------------------------------------------------------------------------


@pytest.mark.parametrize("spectral", ["none", *PRECISIONS])
def test_a_projection_discriminator_judges_images_of_classes(
    spectral: SpectralName,
) -> None:
    network = ProjectionDiscriminator(3, 5, width=4, stages=3, most=16, spectral=spectral)
    images, classes = torch.randn(2, 3, 32, 24), torch.tensor([4, 0])
    network.eval()
    logits, features = network(images, classes)
    assert logits.shape == (2, 4, 3) and features.shape == (2, 16)
    others, same = network(images, torch.tensor([4, 1]))
    assert torch.equal(others[0], logits[0]) and not torch.equal(others[1], logits[1])
    assert torch.equal(same, features), "features do not depend on the class"
    torch.testing.assert_close(network(images[:1], classes[:1])[0], logits[:1])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, features = network(images, classes)
    assert features.dtype == torch.float32 and logits.isfinite().all()


@pytest.mark.parametrize("border", [0, 1, 3])
def test_padding_made_of_slices_is_that_of_torch(
    border: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that is used on GPUs with deterministic algorithms."""
    x = torch.randn(2, 3, 5, 7, dtype=torch.float64, requires_grad=True)
    expected = functional.pad(x, (border, border, border, border), mode="reflect")
    found = _mirror(_mirror(x, border, 2), border, 3) if border else reflect_pad(x, border)
    assert torch.equal(found, expected)
    weights = torch.randn_like(expected)
    gradients = [torch.autograd.grad((each * weights).sum(), x)[0] for each in (found, expected)]
    torch.testing.assert_close(*gradients)
