"""FID and KID: how far generated images are from real ones in the features of a trained network.

The numbers depend on the network, on its weights, and on how images get to it. All of that is the
protocol, which is written beside them. The network computes in the number format of its weights,
usually fp32, never under autocast or in TF32, and everything after it is float64: the precision of
the training has no effect.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hpc_amp.data.order import generator
from hpc_amp.data.together import from_main
from hpc_amp.distributed.collect import gather_rows
from hpc_amp.distributed.world import World
from hpc_amp.gan.config import INCEPTION, FeatureDistance
from hpc_amp.models.weights import load_weights, one_line, read_weights, sha256_of
from hpc_amp.tasks.base import ModelError

_AT_ONCE = 64
"""Images that a network gets at once. Inception needs about 2 GB for them."""


class TrainedDistances:
    """FID and KID of sets of images.

    On every rank, call `begin` before an evaluation, `add` for each batch, and `distances` once at
    its end. A rank may have no images. The features of all images of the rank are kept in the
    memory of the CPU until the next `begin`: 8 KB for each image with Inception.
    """

    def __init__(
        self, config: FeatureDistance, size: tuple[int, int], world: World, device: torch.device
    ) -> None:
        """`size`: height and width of the images. Raises ModelError."""
        self.config = config
        self.world = world
        self.device = device
        self.network = TrainedNetwork(config, size, device)
        self.begin()

    def begin(self) -> None:
        """Forget all images."""
        self._features: dict[tuple[str, bool], list[Tensor]] = {}
        self._counts: dict[str, dict[str, int]] = {}

    def add(self, name: str, images: Tensor, *, made: bool) -> None:
        """Add generated or real images [B, C, H, W] from -1 to 1 to the set `name`."""
        self._features.setdefault((name, made), []).append(self.network(images).cpu())

    def distances(self, name: str) -> dict[str, float]:
        """FID and KID of the set `name`, by the name of the metric. A collective call."""
        real, made = self._gathered(name, made=False), self._gathered(name, made=True)
        self._counts[name] = {"real": len(real), "generated": len(made)}
        if self.config.kid_subsets:
            size = min(self.config.kid_subset_size, len(real), len(made))
            self._counts[name]["kid_subset_size"] = size
        return from_main(self.world, functools.partial(self._compare, real, made))

    def _compare(self, real: Tensor, made: Tensor) -> dict[str, float]:
        real, made = real.double(), made.double()
        own = "" if self.config.network == INCEPTION else f"_{self.config.network.split(':')[1]}"
        found = {f"fid{own}": fid(real, made)}
        if self.config.kid_subsets:
            subsets, size = self.config.kid_subsets, self.config.kid_subset_size
            found[f"kid{own}"] = kid(real, made, subsets, size)
        return found

    def _gathered(self, name: str, *, made: bool) -> Tensor:
        """The features of a set over all ranks, [N, d]. Ranks have contiguous parts of the images,
        so the order does not depend on their number."""
        parts = [self.network.none, *self._features.get((name, made), [])]
        own = torch.cat(parts).to(self.device)
        return gather_rows(own, self.world)

    def protocol(self) -> dict[str, Any]:
        """How the distances since `begin` were measured, and of how many images."""
        facts = {**self.network.protocol, "images": self._counts}
        if self.config.kid_subsets:
            facts["kid_subsets"] = self.config.kid_subsets
        return facts


class TrainedNetwork:
    """Makes features [B, d] of images [B, C, H, W] from -1 to 1, which are grey or RGB.

    Images are rounded to 256 levels first, as they would be in a file. The features of an image
    that is not finite are NaN.
    """

    def __init__(
        self, config: FeatureDistance, size: tuple[int, int], device: torch.device
    ) -> None:
        metrics = torchmetrics("train.evaluation.fid")
        self._takes_bytes = config.network == INCEPTION
        # Initial weights, which are overwritten, must not change the random numbers of a training.
        with torch.random.fork_rng(devices=[]):
            network = _inception(config) if self._takes_bytes else _own_network(config)
        self._network = network.to(device).eval().requires_grad_(False)
        self._dtype = next((p.dtype for p in network.parameters()), torch.float32)
        self.none = self._probe(config.network, size, device)[:0].cpu()
        """The features of no image, [0, d]."""
        resize = "left to the network"
        if self._takes_bytes:
            way = "with antialiasing" if config.antialias else "as in TensorFlow 1, not antialiased"
            resize = f"bilinear to 299x299, {way}"
        self.protocol = {
            "network": config.network,
            "weights": config.weights,
            "weights_sha256": None if config.weights is None else sha256_of(config.weights),
            "features": self.none.shape[1],
            "resize": resize,
            "levels": 256,
            "torch": torch.__version__,
            "torchmetrics": metrics,
        }

    @torch.no_grad()
    def _probe(self, name: str, size: tuple[int, int], device: torch.device) -> Tensor:
        """The features of two black images. Raises ModelError if the network cannot be used."""
        black = torch.zeros(2, 3, *size, dtype=torch.uint8, device=device)
        try:
            found = self._compute(black)
        except (RuntimeError, TypeError, ValueError) as error:
            raise ModelError(
                f"train.evaluation.fid.network: {name} fails on images of {size[0]} x {size[1]} "
                f"pixels: {one_line(error)}"
            ) from error
        if not (isinstance(found, Tensor) and found.is_floating_point() and found.ndim == 2):
            shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ModelError(
                f"train.evaluation.fid.network: {name} returns {shape} for two images, instead of "
                "features [2, d]"
            )
        return found

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        broken = ~images.isfinite().flatten(1).all(1)
        levels = images.float().nan_to_num().clamp(-1, 1).add(1).mul(127.5).round().byte()
        parts = levels.expand(-1, 3, -1, -1).split(_AT_ONCE)
        features = torch.cat([self._compute(part) for part in parts])
        features[broken] = math.nan
        return features

    def _compute(self, levels: Tensor) -> Any:
        inputs = levels if self._takes_bytes else levels.to(self._dtype) / 255
        with full_precision(levels.device):
            return self._network(inputs)


def _inception(config: FeatureDistance) -> nn.Module:
    """FID's Inception-v3 of torch-fidelity."""
    from torchmetrics.image.fid import NoTrainInceptionV3

    assert config.weights is not None
    # torch-fidelity would unpickle whatever is in the file. It gets a copy of what was read safely.
    copy = io.BytesIO()
    torch.save(read_weights(config.weights, INCEPTION), copy)
    copy.seek(0)
    make: Any = NoTrainInceptionV3  # its annotations want a path
    try:
        network: nn.Module = make("inception-v3-compat", ["2048"], copy, antialias=config.antialias)
    except ModuleNotFoundError as error:
        raise ModelError(
            "train.evaluation.fid: Inception needs torch-fidelity, which this Python lacks: "
            "pip install 'hpc-amp[metrics]'"
        ) from error
    except RuntimeError as error:
        raise ModelError(
            f"the weights in {config.weights} belong to another network: {one_line(error)}"
        ) from error
    return network


def _own_network(config: FeatureDistance) -> nn.Module:
    """The network that a callable of the user returns, with the weights of a file if there is
    one."""
    module, _, name = config.network.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, TypeError) as error:
        raise ModelError(f"train.evaluation.fid.network: {config.network}: {error}") from error
    if not isinstance(made, nn.Module):
        raise ModelError(
            f"train.evaluation.fid.network: {config.network} returns a {type(made).__name__} "
            "instead of a torch.nn.Module"
        )
    if config.weights is not None:
        load_weights(made, config.weights, name)
    return made


def torchmetrics(key: str) -> str:
    """The version of torchmetrics, which `key` needs. Raises ModelError if it is missing or too
    old."""
    try:
        import torchmetrics
    except ImportError as error:
        raise ModelError(
            f"{key} needs torchmetrics, which cannot be imported: {error}. "
            "pip install 'hpc-amp[metrics]'"
        ) from error
    found = str(torchmetrics.__version__)
    if tuple(map(int, found.split(".")[:2])) < (1, 8):
        raise ModelError(f"{key} needs torchmetrics 1.8 or newer: this is {found}")
    return found


@contextlib.contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """No autocast and no TF32 in this block."""
    product, convolution = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(product)
        torch.backends.cudnn.allow_tf32 = convolution


def fid(real: Tensor, made: Tensor) -> float:
    """The Fréchet distance (Heusel et al., 2017) of features, float64 [N, d] and [M, d]. NaN for
    less than two images, and if a feature is not finite."""
    if min(len(real), len(made)) < 2 or not bool(real.isfinite().all() and made.isfinite().all()):
        return math.nan
    (mean, factor), (made_mean, made_factor) = _mean_and_factor(real), _mean_and_factor(made)
    # With C1 = F1' F1 and C2 = F2' F2, the trace of (C1 C2)^(1/2) is the sum of the singular values
    # of F1 F2'. No covariance is squared and rooted again, which would cost half of the digits
    # where there are less images than features, and a minute for 2048 features on few cores.
    shared = torch.linalg.svdvals(factor @ made_factor.T).sum()
    spread = factor.square().sum() + made_factor.square().sum()
    return float((mean - made_mean).square().sum() + spread - 2 * shared)


def _mean_and_factor(features: Tensor) -> tuple[Tensor, Tensor]:
    """The mean, and a matrix F with at most d rows for which F' F is the covariance."""
    mean = features.mean(0)
    factor = torch.linalg.qr((features - mean) / (len(features) - 1) ** 0.5, mode="r").R
    return mean, factor


def kid(real: Tensor, made: Tensor, subsets: int, size: int) -> float:
    """The mean kernel distance (Bińkowski et al., 2018) of random subsets of features, float64
    [N, d] and [M, d], always the same ones. A subset has `size` images, or as many as the smaller
    set. NaN for less than two images."""
    from torchmetrics.image.kid import poly_mmd

    size = min(size, len(real), len(made))
    if size < 2:
        return math.nan
    stream = generator("subsets of KID")
    total = 0.0
    for _ in range(subsets):
        some = real[torch.randperm(len(real), generator=stream)[:size].to(real.device)]
        others = made[torch.randperm(len(made), generator=stream)[:size].to(made.device)]
        total += float(poly_mmd(some, others))
    return total / subsets
