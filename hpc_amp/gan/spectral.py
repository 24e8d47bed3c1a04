"""Spectral normalisation (Miyato et al., 2018): a weight divided by its largest singular value.

The value comes from one step of power iteration in each training forward pass. `fp32` is the
default. `fp16` computes the iteration in half precision with a safe epsilon, as NVIDIA's talk on
GANs under AMP describes it: it reads half the memory, and its value agrees with that of fp32 within
1e-3 (tests/unit/test_gan_layers.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm
from torch.nn.utils import parametrize

from hpc_amp.gan.config import SpectralName


class SpectralNorm(nn.Module):
    """The parametrization: a weight [outputs, ...] to weight / sigma, of the same shape.

    `u` [outputs] and `v` [rest] are the singular vectors so far. They are buffers, so that a
    checkpoint has them, and change in training only.
    """

    u: Tensor
    v: Tensor

    def __init__(self, weight: Tensor, precision: SpectralName = "fp32") -> None:
        super().__init__()
        self.dtype = torch.float16 if precision == "fp16" else torch.float32
        self.held = False
        """Whether the iteration rests (see `held`)."""
        # 1e-12 is 0 in half precision.
        self.eps = 1e-12 if precision == "fp32" else 1e-4
        matrix = weight.detach().flatten(1).float()
        self.register_buffer("u", nn.functional.normalize(torch.randn(len(matrix)), dim=0))
        self.register_buffer("v", nn.functional.normalize(torch.randn(matrix.shape[1]), dim=0))
        self.settle(matrix)

    def settle(self, weight: Tensor, steps: int = 15) -> None:
        """Find the singular vectors of a weight [outputs, ...] that was drawn anew, or come nearer
        to them."""
        with torch.autocast(weight.device.type, enabled=False):
            self._iterate(weight.detach().flatten(1), steps)

    def forward(self, weight: Tensor) -> Tensor:
        """The weight with the largest singular value 1, about."""
        with torch.autocast(weight.device.type, enabled=False):
            matrix = weight.flatten(1)
            if self.training and not self.held:
                self._iterate(matrix.detach(), 1)
            # A second forward pass changes the buffer, and backward needs this one. The average of
            # several unit vectors, which is what an EMA has, is shorter than 1.
            v = self.v.float()  # with O2 and O3, buffers are in half precision
            v = v / vector_norm(v).clamp(min=self.eps)
            sigma = vector_norm(torch.mv(matrix.float(), v)).clamp(min=self.eps)
            return torch.div(weight, sigma.to(weight.dtype))

    @torch.no_grad()
    def _iterate(self, matrix: Tensor, steps: int) -> None:
        """Steps of power iteration."""
        matrix = matrix.to(self.dtype)
        transposed = matrix.t()
        for _ in range(steps):
            v = self._unit(torch.mv(transposed, self.u.to(self.dtype)), self.v)
            u = self._unit(torch.mv(matrix, v.to(self.dtype)), self.u)
            self.u.copy_(u)
            self.v.copy_(v)

    def _unit(self, vector: Tensor, before: Tensor) -> Tensor:
        """`vector` with the length 1, in fp32; `before` where it is 0, since power iteration never
        leaves 0 again."""
        # The norm of a half-precision vector may overflow.
        wide = vector.float()
        norm = vector_norm(wide)
        return torch.where(norm > self.eps, wide / norm, before.float())


def spectral_norm(module: nn.Module, precision: SpectralName = "fp32") -> nn.Module:
    """Divide `module.weight` by its largest singular value from now on, unless `precision` is
    `none`. Returns `module`."""
    if precision == "none":
        return module
    weight = module.weight
    assert isinstance(weight, Tensor)
    parametrize.register_parametrization(module, "weight", SpectralNorm(weight, precision))
    return module


def advance(network: nn.Module) -> None:
    """One step of power iteration of each weight of `network`, as a training forward pass makes
    it."""
    for module in network.modules():
        if parametrize.is_parametrized(module, "weight"):
            for norm in module.parametrizations.weight:  # type: ignore[union-attr]
                if isinstance(norm, SpectralNorm) and norm.training:
                    norm.settle(module.parametrizations.weight.original, 1)  # type: ignore


@contextlib.contextmanager
def held(network: nn.Module) -> Iterator[None]:
    """In this block, forward passes of `network` make no step of power iteration: the weights are
    the same in each, and when a forward pass is repeated for gradient checkpointing."""
    norms = [module for module in network.modules() if isinstance(module, SpectralNorm)]
    before = [norm.held for norm in norms]
    for norm in norms:
        norm.held = True
    try:
        yield
    finally:
        for norm, value in zip(norms, before, strict=True):
            norm.held = value
