#!/usr/bin/env python3
"""The memory that a training step of a GAN needs, counted for a job file, without a GPU.

    python benchmarks/gan_memory.py configs/spade.yaml [KEY=VALUE ...]

It runs the forward pass of each phase on the CPU, with one and with two synthetic samples of the
job's size, and counts the bytes that are kept for the backward pass. Printed are those of the phase
that keeps most, for each further sample. A GPU needs more: work space of its kernels, and what the
allocator cannot use.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from hpc_amp.amp.precision import PrecisionPolicy
from hpc_amp.config.load import load_job
from hpc_amp.distributed.world import World
from hpc_amp.tasks.build import build_task

GIB = 2**30


def kept_bytes(config: Path, overrides: list[str], mode: str, samples: int) -> tuple[int, int, int]:
    """The bytes that the largest phase keeps for the backward pass, and the numbers of parameters:
    of discriminators, and of the other networks."""
    job = load_job(
        config,
        [
            *overrides,
            "train.images.name=synthetic",
            "train.images.load_size=null",
            "train.images.synthetic.train=4",
            "train.images.synthetic.test=4",
            f"train.batch_size={samples}",
            f"train.precision={mode}",
            "train.device=cpu",
            "train.sync_batchnorm=false",
        ],
    ).job
    device = torch.device("cpu")
    task = build_task(job.train, World(), device)
    data = task.prepare_data()
    networks = task.build_networks()
    task.trained = networks
    batch = next(iter(data.epoch(0)))[0]
    weights = {
        value.untyped_storage().data_ptr()
        for network in networks.values()
        for value in (*network.parameters(), *network.buffers())
    }
    most = 0
    for phase in task.phases():
        for name, network in networks.items():
            network.requires_grad_(name in phase.networks)
        found: dict[int, int] = {}

        def keep(tensor: Tensor, found: dict[int, int] = found) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                found[storage.data_ptr()] = storage.nbytes()
            return tensor

        policy = PrecisionPolicy.create(job.train.precision, device)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept), policy.autocast():
            graphs = list(task.losses(phase.name, batch, networks))
        most = max(most, sum(found.values()))
        del graphs
    sizes = {True: 0, False: 0}
    for name, network in networks.items():
        size = sum(value.numel() for value in network.parameters())
        sizes[name.endswith("discriminator")] += size
    return most, sizes[True], sizes[False]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    for mode in ("fp32", "bf16"):
        counts = [
            kept_bytes(arguments.config, arguments.overrides, mode, samples) for samples in (1, 2)
        ]
        (one, judging, making), (two, _, _) = counts
        print(f"{mode}: {(two - one) / GIB:.2f} GiB for each sample")
    # Weights, gradients and Adam's two averages in fp32.
    print(
        f"{making / 1e6:.1f} million parameters in the generator, {judging / 1e6:.1f} million in "
        f"the discriminator: {16 * (making + judging) / GIB:.2f} GiB with gradients and Adam"
    )


if __name__ == "__main__":
    main()
