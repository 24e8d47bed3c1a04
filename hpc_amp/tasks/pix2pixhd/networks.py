"""The networks of pix2pixHD: global generator, local enhancer, encoder of instance features."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from hpc_amp.data.order import generator
from hpc_amp.gan.layers import ConvBlock, ResidualBlock, Upsample, initialize
from hpc_amp.tasks.pix2pixhd.clusters import cluster
from hpc_amp.tasks.pix2pixhd.config import InstanceFeatures, Pix2pixHdNetworks


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

    centres: Tensor
    """Clusters of the features of each label: [labels, clusters, channels]."""
    found: Tensor
    """How many clusters each label has: int64 [labels]. The others of `centres` are 0."""

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
        centres = torch.zeros(labels, features.clusters, features.channels)
        self.register_buffer("centres", centres)
        self.register_buffer("found", torch.zeros(labels, dtype=torch.int64))
        initialize(self, "normal")

    def forward(self, images: Tensor, instances: Tensor) -> Tensor:
        """Features."""
        return instance_means(self.layers(images).float(), instances)

    @torch.no_grad()
    def set_clusters(self, looks: Tensor, labels: Tensor) -> None:
        """Cluster the features `looks` [N, channels] of objects with `labels` int64 [N], both on
        the CPU. Features that are not finite are left out; without others, all stays as it is."""
        finite = looks.isfinite().all(1)
        looks, labels = looks[finite], labels[finite]
        if len(looks) == 0:
            return
        self.centres.zero_()
        for label in range(len(self.found)):
            centres = cluster(looks[labels == label], self.centres.shape[1], label)
            self.centres[label, : len(centres)] = centres.to(self.centres)
            self.found[label] = len(centres)

    @torch.no_grad()
    def take_clusters(self, other: InstanceEncoder) -> None:
        """Have the clusters of another encoder of the same shape."""
        self.centres.copy_(other.centres)
        self.found.copy_(other.found)

    def drawn(self, instances: Tensor, labels: Tensor, seeds: Tensor) -> Tensor:
        """Features [B, channels, H, W] without an image: each object gets one of the clusters of
        its label, which depends on the seed of its image, its number and its label alone. Objects
        of a label that has no cluster get 0."""
        objects = Objects(instances, labels)
        centres, found = self.centres.float(), self.found.tolist()
        looks = centres.new_zeros(len(objects.labels), centres.shape[2])
        for at, (image, instance, label) in enumerate(objects.each()):
            if found[label]:
                stream = generator(int(seeds[image]), "look", instance, label)
                looks[at] = centres[label, torch.randint(found[label], (), generator=stream)]
        return objects.paint(looks)


class Objects:
    """The objects of a batch of maps, int64 [B, H, W]: pixels of an image that have one number of
    instance and one label. Attribute `labels`: int64 [N], that of each object."""

    def __init__(self, instances: Tensor, labels: Tensor) -> None:
        self.shape = instances.shape
        image = torch.arange(len(instances), device=instances.device)[:, None, None]
        # One number for the three: `unique` of rows is many times slower.
        self._instances, self._labels = int(instances.max()) + 1, int(labels.max()) + 1
        keys = (image * self._instances + instances) * self._labels + labels
        self._keys, self._place = keys.flatten().unique(return_inverse=True)
        self.labels = self._keys % self._labels

    def each(self) -> Iterator[tuple[int, int, int]]:
        """Image, instance and label of each object."""
        for key in self._keys.tolist():
            rest, label = divmod(key, self._labels)
            yield *divmod(rest, self._instances), label

    def means(self, features: Tensor) -> Tensor:
        """The mean of `features` [B, C, H, W] over the pixels of each object: [N, C]."""
        flat = features.permute(0, 2, 3, 1).flatten(0, 2)
        sums = flat.new_zeros(len(self._keys), flat.shape[1]).index_add(0, self._place, flat)
        return sums / torch.bincount(self._place, minlength=len(self._keys))[:, None]

    def paint(self, values: Tensor) -> Tensor:
        """`values` [N, C] of the objects at each of their pixels: [B, C, H, W]."""
        painted: Tensor = values[self._place].unflatten(0, self.shape)
        return painted.permute(0, 3, 1, 2)


def instance_means(features: Tensor, instances: Tensor) -> Tensor:
    """The mean of `features` [B, C, H, W] over each instance of `instances` int64 [B, H, W], at
    each of its pixels: [B, C, H, W]."""
    objects = Objects(instances, torch.zeros_like(instances))
    return objects.paint(objects.means(features))


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
