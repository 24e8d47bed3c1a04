"""What a task gets in each step, and the random numbers of a sample.

Each sample has a seed of its own, which depends only on the seed of the run, the epoch and the
position in the epoch's order. All random numbers of the sample are drawn from it. So they are the
same for every number of ranks, with and without accumulation, and after a resume at any step.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from hpc_amp.data.memory import arrange, put
from hpc_amp.data.order import generator
from hpc_amp.gan.data.config import PairedData


@dataclass(frozen=True, slots=True)
class PairedBatch:
    """Images, each with the input that a generator makes it from. Tensors are on the device, except
    `seeds`."""

    images: Tensor
    """float32 [B, 3, H, W] from -1 to 1."""
    seeds: Tensor
    """int64 [B] on the CPU, one number for each sample (see `normal`)."""
    labels: Tensor | None = None
    """int64 [B, H, W]: ids from 0 on; the number of labels stands for pixels without a label. None
    where inputs are images."""
    instances: Tensor | None = None
    """int64 [B, H, W]: pixels of one object have one number. None without instance maps."""
    inputs: Tensor | None = None
    """float32 [B, 3, H, W] from -1 to 1. None where inputs are labels."""

    def __len__(self) -> int:
        return len(self.seeds)

    def examples(self, count: int) -> Tensor:
        """Up to `count` of its images, [N, 3, H, W] from -1 to 1."""
        return self.images[:count]


@dataclass(frozen=True, slots=True)
class UnpairedBatch:
    """Images of domains A and B, equally many of both. They are not pairs. Tensors are on the
    device, except `seeds`."""

    a: Tensor
    """float32 [B, 3, H, W] from -1 to 1."""
    b: Tensor
    """The same of domain B."""
    seeds: Tensor
    """int64 [B] on the CPU, one number for each sample (see `normal`)."""
    first: Tensor | None = None
    """Evaluation batches: whether it is the first time that the image of A, and that of B, is
    there, bool [B, 2]. The smaller domain begins again."""
    a_in_b: Tensor | None = None
    """Evaluation batches of a synthetic set: the content of `a` drawn in each style of domain B,
    float32 [B, styles, 3, H, W], without noise."""
    b_in_a: Tensor | None = None
    """The content of `b` drawn in domain A, which has one style: [B, 1, 3, H, W]."""

    def __len__(self) -> int:
        return len(self.seeds)

    def examples(self, count: int) -> Tensor:
        """Up to `count` of its images, [N, 3, H, W] from -1 to 1."""
        return torch.cat((self.a[: count // 2], self.b[: count // 2]))


@dataclass(frozen=True, slots=True)
class ClassBatch:
    """Content images, each with K reference images of another class. Tensors are on the device,
    except `seeds`.

    Class numbers are positions in `Prepared.classes`; classes held out for evaluation, which only
    `style_class` of evaluation batches has, come after those.
    """

    content: Tensor
    """float32 [B, 3, H, W] from -1 to 1."""
    content_class: Tensor
    """int64 [B]."""
    style: Tensor
    """float32 [B, K, 3, H, W] from -1 to 1."""
    style_class: Tensor
    """int64 [B]."""
    seeds: Tensor
    """int64 [B] on the CPU, one number for each sample (see `normal`)."""
    truth: Tensor | None = None
    """Evaluation batches of a synthetic set: the content drawn as `style_class`, float32
    [B, 3, H, W], without noise."""

    def __len__(self) -> int:
        return len(self.seeds)

    def examples(self, count: int) -> Tensor:
        """Up to `count` of its images, [N, 3, H, W] from -1 to 1."""
        return self.content[:count]


Batch = TypeVar("Batch", PairedBatch, UnpairedBatch, ClassBatch)


def part_of(batch: Batch, samples: slice) -> Batch:
    """A copy of some samples of a batch, which keeps no memory of the others."""
    values = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return dataclasses.replace(
        batch,
        **{name: value[samples].clone() for name, value in values.items() if value is not None},
    )


def condition(batch: PairedBatch, config: PairedData) -> Tensor:
    """What the generator makes images from: float32 [B, `config.condition_channels`, H, W]. One
    channel for each label, which is 1 where a pixel has it, or the input image; then, with instance
    maps, a channel that is 1 at the edges of instances."""
    if batch.labels is not None:
        # Not F.one_hot, which reads the labels on the host and makes int64.
        samples, height, width = batch.labels.shape
        shape = (samples, config.label_channels, height, width)
        shown = torch.zeros(shape, device=batch.labels.device)
        shown.scatter_(1, batch.labels.long()[:, None], 1.0)
    else:
        assert batch.inputs is not None
        shown = batch.inputs
    if batch.instances is not None:
        shown = torch.cat((shown, edges(batch.instances)), 1)
    return arrange(shown, batch.images.is_contiguous(memory_format=torch.channels_last))


def edges(instances: Tensor) -> Tensor:
    """Where the instances [B, H, W] meet: float32 [B, 1, H, W], 1 at a pixel that has a neighbour
    above, below, left or right of another instance."""
    found = torch.zeros_like(instances, dtype=torch.bool)
    across = instances[:, :, 1:] != instances[:, :, :-1]
    down = instances[:, 1:] != instances[:, :-1]
    found[:, :, 1:] |= across
    found[:, :, :-1] |= across
    found[:, 1:] |= down
    found[:, :-1] |= down
    return found[:, None].float()


def normal(
    seeds: Tensor, shape: tuple[int, ...], device: torch.device | str, purpose: str = ""
) -> Tensor:
    """Normally distributed numbers for each sample: float32 [B, *shape] on `device`.

    The numbers of a sample depend on its seed, the shape and `purpose` alone. Use a different
    `purpose` for each use in a step: equal ones give equal numbers.
    """
    drawn = [torch.randn(shape, generator=generator(seed, purpose)) for seed in seeds.tolist()]
    return put(torch.stack(drawn), device)


def sample_seeds(seed: int, epoch: int | str, positions: Iterable[int]) -> Tensor:
    """The seeds of the samples at `positions` in the order of `epoch`: int64 [B] on the CPU."""
    keys = (repr((seed, "sample", epoch, position)) for position in positions)
    digests = (hashlib.blake2b(key.encode(), digest_size=7).digest() for key in keys)
    return torch.tensor([int.from_bytes(digest, "little") for digest in digests])
