"""`python -m hpc_amp.train.generate RUN --input FOLDER --output FOLDER`: images from a trained
generator. Each rank makes its part of them.

From Python:

    from hpc_amp.train.generate import load_generator
    generator = load_generator("runs/spade/latest")
    images = generator.networks["generator"](...)
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_amp.train.program import ArgumentParser, run_program

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from hpc_amp.distributed.world import World
    from hpc_amp.gan.generation import Request
    from hpc_amp.gan.task import ConditionalGan


@dataclass(frozen=True)
class LoadedGenerator:
    """The networks of a run at one of its checkpoints, ready to make images."""

    task: ConditionalGan
    networks: dict[str, nn.Module]
    step: int
    weights: str
    """`average` or `networks`."""


def load_generator(
    run: str | os.PathLike[str],
    *,
    checkpoint: str = "newest",
    weights: str = "auto",
    device: str | torch.device = "cpu",
    world: World | None = None,
) -> LoadedGenerator:
    """The networks of a run, in evaluation mode, without gradients.

    `checkpoint` is `newest`, `best` (by the metric of the task) or a step; `weights` are the moving
    `average`, the `networks` themselves, or `auto`: the average where the run has one. Raises
    DataError where there is no such run or checkpoint.
    """
    import torch

    from hpc_amp.data.errors import DataError
    from hpc_amp.distributed.world import World
    from hpc_amp.gan.task import ConditionalGan
    from hpc_amp.models.weights import load_weights
    from hpc_amp.tasks.build import build_task
    from hpc_amp.tasks.registry import job_from_plain

    folder = Path(run)
    try:
        plain = json.loads((folder / "job.json").read_text())["job"]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{folder} is not the directory of a run: {error}") from None
    code = folder / "code" if plain.get("code") is not None else None
    train = job_from_plain(plain, code).train
    if train is None:
        raise DataError(f"{folder} is not a run of a task")
    task = build_task(train, world or World(), torch.device(device))
    if not isinstance(task, ConditionalGan):
        raise DataError(f"the task {task.name} makes no images from files")
    best = task.best
    lowest = best is not None and best.direction == "lowest"
    step = _choose(folder / "checkpoints", checkpoint, lowest=lowest)
    stem = weights
    path = folder / "checkpoints" / f"step-{step:08d}"
    if weights == "auto":
        stem = "average" if (path / "average.pt").is_file() else "networks"
    if not (path / f"{stem}.pt").is_file():
        raise DataError(f"{path} has no {stem}.pt: was the run trained with train.ema?")
    networks = task.generation_networks()
    for name, network in networks.items():
        load_weights(network, str(path / f"{stem}.pt"), name)
        network.to(device).eval().requires_grad_(False)
    return LoadedGenerator(task, networks, step, stem)


def _choose(folder: Path, wanted: str, *, lowest: bool) -> int:
    """The step of the checkpoint `newest`, `best` or of a step that is named."""
    from hpc_amp.data.errors import DataError
    from hpc_amp.train.checkpoint import CheckpointStore, Retention
    from hpc_amp.train.manifest import DamagedCheckpoint, read_manifest

    store = CheckpointStore(folder, run=folder.parent.name, retention=Retention(), warn=print)
    if wanted == "newest":
        newest = store.newest()
        if newest is None:
            raise DataError(f"there is no valid checkpoint in {folder}")
        return newest
    if wanted.isdecimal():
        if int(wanted) not in store.steps():
            steps = ", ".join(map(str, store.steps())) or "none"
            raise DataError(f"there is no checkpoint of step {wanted} in {folder}: it has {steps}")
        return int(wanted)
    if wanted != "best":
        raise DataError(f"--checkpoint {wanted}: it is newest, best or a step")
    metrics: dict[int, float] = {}
    for step in store.steps():
        try:
            metric = read_manifest(store.path(step)).get("metric")
        except DamagedCheckpoint as error:
            store.pass_over(step, error)
            continue
        if metric is not None:
            metrics[step] = metric
    if not metrics:
        raise DataError(f"no checkpoint in {folder} was evaluated: take the newest one")
    choose = min if lowest else max
    return choose(metrics, key=lambda step: metrics[step])


def main() -> int:
    """Run this rank."""
    arguments = _parser().parse_args()
    from hpc_amp.distributed.world import resolve

    world = resolve(os.environ)
    from hpc_amp.distributed.setup import choose_device
    from hpc_amp.gan.generation import Request, check_outputs, images_below

    files = images_below(arguments.input)
    folder = arguments.input if arguments.input.is_dir() else arguments.input.parent
    check_outputs(files, folder, arguments.output)
    device = choose_device(arguments.device, world)
    loaded = load_generator(
        arguments.run,
        checkpoint=arguments.checkpoint,
        weights=arguments.weights,
        device=device,
        world=world,
    )
    request = Request(
        folder=folder,
        files=files[world.rank :: world.size],
        style=tuple(images_below(arguments.style)) if arguments.style else (),
        instances=arguments.instances,
        direction=arguments.direction,
        seed=arguments.seed,
        batch_size=arguments.batch_size,
    )
    made = _write_all(loaded, request, arguments.output, device)
    print(
        f"rank {world.rank}: {made} images in {arguments.output}, from step {loaded.step} "
        f"({loaded.weights})",
        flush=True,
    )
    return 0


def _write_all(
    loaded: LoadedGenerator, request: Request, output: Path, device: torch.device
) -> int:
    """Write each image under the name of its input, as PNG. Returns how many."""
    import torch

    from hpc_amp.amp.precision import PrecisionError, PrecisionPolicy
    from hpc_amp.config.schema import Precision
    from hpc_amp.gan.generation import output_of

    task = loaded.task
    try:
        policy = PrecisionPolicy.create(task.train.precision, device)
    except PrecisionError:  # such as tf32, on a machine without a GPU
        policy = PrecisionPolicy.create(Precision(mode="fp32"), device)
    made = 0
    with torch.no_grad(), policy.autocast():
        for file, image in task.generate(request, loaded.networks):
            place = output_of(file, request.folder, output)
            place.parent.mkdir(parents=True, exist_ok=True)
            _write_png(place, image)
            made += 1
    return made


def _write_png(path: Path, image: Tensor) -> None:
    """An image [3, H, W] from -1 to 1 as a file, which is whole or not there."""
    from PIL import Image

    pixels = image.float().cpu().div(2).add(0.5).clamp(0, 1).mul(255).round().byte()
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy()).save(partial, "PNG")
    os.replace(partial, path)


def _parser() -> argparse.ArgumentParser:
    parser = ArgumentParser(prog="python -m hpc_amp.train.generate", description=__doc__)
    parser.add_argument("run", type=Path, help="directory of the run")
    parser.add_argument("--input", type=Path, required=True, help="folder of inputs, or a file")
    parser.add_argument("--output", type=Path, required=True, help="folder of the images")
    parser.add_argument("--checkpoint", default="newest", help="newest, best or a step")
    parser.add_argument("--weights", default="auto", choices=["auto", "average", "networks"])
    parser.add_argument("--style", type=Path, help="image of a style, or folder of images")
    parser.add_argument("--instances", type=Path, help="folder of instance maps")
    parser.add_argument("--direction", choices=["a2b", "b2a"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--device", default="auto", choices=["auto", "cuda", "cpu"])
    return parser


if __name__ == "__main__":
    run_program(main)
