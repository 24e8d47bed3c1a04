"""The networks of pix2pixHD: global generator, local enhancer, encoder of instance features."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hpc_amp.gan.layers import ConvBlock, ResidualBlock, Upsample, initialize
from hpc_amp.tasks.pix2pixhd.config import InstanceFeatures, Pix2pixHdNetworks

MOMENTUM = 0.01
"""The part of the sums of a label that each batch forgets."""


class GlobalGenerator(nn.Module):
    """A condition [B, C, H, W] to feature maps [B, width, H, W] (the paper's G1 without its last
    layer, which is `Head`)."""

    def __init__(self, condition: int, networks: Pix2pixHdNetworks) -> None:
        super().__init__()
        norm, spectral = networks.norm, networks.spectral
        channels = [networks.width * 2**level for level in range(networks.downsamplings + 1)]
        layers: list[nn.Module] = [ConvBlock(condition, channels[0], 7, norm=norm)]
        layers += _halvings(channels, networks)
        for _ in range(networks.blocks):
            layers.append(ResidualBlock(channels[-1], norm=norm, spectral=spectral))
        layers += _doublings(channels, networks)
        self.layers = nn.Sequential(*layers)
        initialize(self, "normal")

    def forward(self, condition: Tensor) -> Tensor:
        """Feature maps of the condition's size."""
        features: Tensor = self.layers(condition)
        return features


class Head(nn.Module):
    """Feature maps [B, channels, H, W] to images [B, 3, H, W] from -1 to 1, in fp32."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layer = ConvBlock(channels, 3, 7, activation_name="none")
        initialize(self, "normal")

    def forward(self, features: Tensor) -> Tensor:
        """Images."""
        return torch.tanh(self.layer(features).float())


class LocalEnhancer(nn.Module):
    """A condition [B, C, H, W] and feature maps [B, width, H/2, W/2] of the global generator to
    images [B, 3, H, W] (the paper's G2)."""

    begun: Tensor

    def __init__(self, condition: int, networks: Pix2pixHdNetworks, blocks: int) -> None:
        super().__init__()
        norm, spectral = networks.norm, networks.spectral
        width = max(1, networks.width // 2)
        self.down = nn.Sequential(
            ConvBlock(condition, width, 7, norm=norm),
            ConvBlock(width, networks.width, 3, 2, norm=norm, spectral=spectral, padding="zeros"),
        )
        self.body = nn.Sequential(
            *[ResidualBlock(networks.width, norm=norm, spectral=spectral) for _ in range(blocks)],
            Upsample(),
            ConvBlock(networks.width, width, norm=norm, spectral=spectral),
        )
        self.head = Head(width)
        self.register_buffer("begun", torch.zeros((), dtype=torch.int64))
        initialize(self, "normal")

    def forward(self, condition: Tensor, features: Tensor) -> Tensor:
        """Images. `begun` says, also in a checkpoint, whether it was ever trained."""
        if self.training and torch.is_grad_enabled():
            self.begun.fill_(1)
        images: Tensor = self.head(self.body(self.down(condition) + features))
        return images


class InstanceEncoder(nn.Module):
    """Images [B, 3, H, W] to features [B, channels, H, W] that are equal for all pixels of an
    instance: the mean over its pixels (section 3.4 of the paper)."""

    label_sums: Tensor
    """For each label, sums of its pixels' features and their number, in all batches; older batches
    count less."""

    def __init__(
        self, features: InstanceFeatures, labels: int, networks: Pix2pixHdNetworks
    ) -> None:
        super().__init__()
        channels = [features.width * 2**level for level in range(features.downsamplings + 1)]
        layers: list[nn.Module] = [ConvBlock(3, channels[0], 7, norm=networks.norm)]
        layers += _halvings(channels, networks)
        layers += _doublings(channels, networks)
        layers.append(ConvBlock(channels[0], features.channels, 7, activation_name="tanh"))
        self.layers = nn.Sequential(*layers)
        self.register_buffer("label_sums", torch.zeros(labels, features.channels + 1))
        initialize(self, "normal")

    def forward(self, images: Tensor, instances: Tensor, labels: Tensor) -> Tensor:
        """Features. In training, the sums of each label follow them, on all ranks alike."""
        features = instance_means(self.layers(images).float(), instances)
        if self.training and torch.is_grad_enabled():
            self._follow(features.detach(), labels)
        return features

    def typical(self, labels: Tensor) -> Tensor:
        """The mean features of each pixel's label, for label maps without an image."""
        means = self.label_sums[:, :-1] / self.label_sums[:, -1:].clamp(min=1e-6)
        return means[labels].permute(0, 3, 1, 2)

    @torch.no_grad()
    def _follow(self, features: Tensor, labels: Tensor) -> None:
        flat = features.permute(0, 2, 3, 1).flatten(0, 2)
        new = torch.zeros_like(self.label_sums)
        new[:, :-1].index_add_(0, labels.flatten(), flat)
        new[:, -1] = torch.bincount(labels.flatten(), minlength=len(new))
        if dist.is_initialized():
            dist.all_reduce(new)
        self.label_sums.mul_(1 - MOMENTUM).add_(new)


def instance_means(features: Tensor, instances: Tensor) -> Tensor:
    """The mean of `features` [B, C, H, W] over each instance of `instances` int64 [B, H, W], at
    each of its pixels: [B, C, H, W]."""
    batch, channels, height, width = features.shape
    image = torch.arange(batch, device=instances.device)[:, None, None].expand_as(instances)
    pairs = torch.stack((image.flatten(), instances.flatten()), 1)
    found, place = pairs.unique(dim=0, return_inverse=True)
    flat = features.permute(0, 2, 3, 1).reshape(-1, channels)
    sums = flat.new_zeros(len(found), channels).index_add(0, place, flat)
    counts = torch.bincount(place, minlength=len(found))[:, None]
    means = (sums / counts)[place]
    return means.view(batch, height, width, channels).permute(0, 3, 1, 2)


def _halvings(channels: Sequence[int], networks: Pix2pixHdNetworks) -> list[nn.Module]:
    """Convolutions of stride 2, from each number of channels to the next."""
    norm, spectral = networks.norm, networks.spectral
    return [
        ConvBlock(before, after, 3, 2, norm=norm, spectral=spectral, padding="zeros")
        for before, after in itertools.pairwise(channels)
    ]


def _doublings(channels: Sequence[int], networks: Pix2pixHdNetworks) -> list[nn.Module]:
    """The way back from the last number of channels to the first, each time twice the size."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(reversed(channels)):
        block = ConvBlock(before, after, norm=networks.norm, spectral=networks.spectral)
        layers += [Upsample(), block]
    return layers
