"""`python -m hpc_amp.train.generate RUN --input FOLDER --output FOLDER`: images from a trained
generator. Each rank makes its part of them.

From Python:

    from hpc_amp.train.generate import load_generator
    generator = load_generator("runs/spade/latest")
    generator.make("maps", "images")
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_amp.errors import JobError
from hpc_amp.files import replacing, through_latest
from hpc_amp.train.program import ArgumentParser, run_program

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from hpc_amp.amp.precision import PrecisionPolicy
    from hpc_amp.config.schema import Job
    from hpc_amp.distributed.world import World
    from hpc_amp.gan.generation import Request
    from hpc_amp.gan.task import ConditionalGan

REPORT_SECONDS = 10.0
"""Time between two lines about the progress."""
VIDEO = "video.mp4"
"""The video in a folder of frames."""


@dataclass(frozen=True)
class LoadedGenerator:
    """The networks of a run at one of its checkpoints, ready to make images."""

    task: ConditionalGan
    networks: dict[str, nn.Module]
    step: int
    weights: str
    """`average` or `networks`."""

    def images(self, request: Request) -> Iterator[tuple[Path, Tensor]]:
        """Each file of `request` with the image [3, H, W] from -1 to 1 that is made from it, in the
        precision of the training (fp32 for O2 and O3). Sets torch's switches of TF32 as a training
        does. Raises InputError."""
        import torch

        from hpc_amp.amp.precision import PrecisionError, PrecisionPolicy
        from hpc_amp.config.schema import Precision
        from hpc_amp.gan.inputs import check_options

        task = self.task
        check_options(task.train, request.options)
        try:
            policy = PrecisionPolicy.create(task.train.precision, task.device)
        except PrecisionError:  # such as tf32, on a machine without a GPU
            policy = PrecisionPolicy.create(Precision(mode="fp32"), task.device)
        policy.configure_backends()
        for part, networks in self._parts(request, policy):
            making = task.generate(part, networks)
            while True:
                # Not around `yield`: the caller's own computations must not be affected.
                with torch.no_grad(), policy.autocast():
                    made = next(making, None)
                if made is None:
                    break
                yield made

    def _parts(
        self, request: Request, policy: PrecisionPolicy
    ) -> Iterator[tuple[Request, Mapping[str, nn.Module]]]:
        """This rank's part of a request, or parts of it, each with the networks that make it."""
        if request.finetune is None:
            yield request, self.networks
            return
        from hpc_amp.train.finetuning import FineTuning

        task: Any = self.task  # one that can be fine-tuned: see `generation_options`
        tuning = FineTuning(task, self.networks, policy)
        for images, part in task.alike(request).items():
            references = task.read_references(images, request)
            # The folder has the name of the sequence, or is that of all: equal on all ranks.
            tuning.run(references, request.finetune, request.seed, images[0].parent.name)
            yield part, tuning.networks

    def make(
        self,
        inputs: str | os.PathLike[str],
        output: str | os.PathLike[str],
        *,
        style: str | os.PathLike[str] | None = None,
        instances: str | os.PathLike[str] | None = None,
        points: str | os.PathLike[str] | None = None,
        direction: str | None = None,
        seed: int = 0,
        batch_size: int = 8,
        fps: int | None = None,
        finetune: int | None = None,
    ) -> int:
        """What `hpc-amp generate` does, in this process: write an image for each one in the folder
        `inputs`, or for that file, to the folder `output`. The arguments are the options of the
        command. Returns the number of images. Raises InputError."""
        from hpc_amp.distributed.world import World

        request = make_request(
            World(),
            Path(inputs),
            Path(output),
            style,
            instances,
            points,
            direction,
            seed,
            batch_size,
            fps,
            finetune,
        )
        return write_images(self, request, Path(output), lambda made: None)


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
    `average`, the `networks` themselves, or `auto`: the average if the run has one. With `world`,
    this is a collective call: rank 0 chooses the checkpoint, because a run that still trains saves
    further ones. Raises DataError if there is no such run or checkpoint.
    """
    import torch

    from hpc_amp.data.errors import DataError
    from hpc_amp.data.together import from_main, together
    from hpc_amp.distributed.world import World
    from hpc_amp.gan.task import ConditionalGan
    from hpc_amp.tasks.build import build_task

    folder, world = through_latest(Path(run)), world or World()
    train = _read_job(folder).train
    if train is None:
        raise DataError(f"{folder} is not a run of a task")
    task = build_task(train, world, torch.device(device))
    if not isinstance(task, ConditionalGan):
        raise DataError(f"the task {task.name} makes no images from files")
    lowest = task.best is not None and task.best.direction == "lowest"
    step, stem = from_main(
        world, lambda: _choose(folder / "checkpoints", checkpoint, weights, lowest=lowest)
    )
    networks = task.generation_networks()
    place = folder / "checkpoints" / f"step-{step:08d}"
    together(world, lambda: _load(networks, place, stem))
    for network in networks.values():
        network.to(device).eval().requires_grad_(False)
    return LoadedGenerator(task, networks, step, stem)


def _read_job(folder: Path) -> Job:
    """The job of a run. Raises DataError where `folder` is not the directory of a run."""
    from hpc_amp.data.errors import DataError
    from hpc_amp.tasks.registry import job_from_plain

    try:
        plain = json.loads((folder / "job.json").read_text())["job"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder} is not the directory of a run: {error}") from None
    code = folder / "code" if plain.get("code") is not None else None
    if code is not None and str(code) not in sys.path:
        sys.path.insert(0, str(code))  # for the class of the task, too
    return job_from_plain(plain, code)


def _choose(folder: Path, wanted: str, weights: str, *, lowest: bool) -> tuple[int, str]:
    """The step of the checkpoint `newest`, `best` or of a step that is named; and `average` or
    `networks`, which file of it is meant by `weights`."""
    from hpc_amp.data.errors import DataError
    from hpc_amp.train.checkpoint import weights_of

    step = _choose_step(folder, wanted, lowest=lowest)
    path = folder / f"step-{step:08d}"
    stem = weights_of(path, weights)
    if weights != "auto" and path.is_dir() and not (path / f"{stem}.pt").is_file():
        raise DataError(f"{path} has no {stem}.pt: was the run trained with train.ema?")
    return step, stem


def _choose_step(folder: Path, wanted: str, *, lowest: bool) -> int:
    from hpc_amp.data.errors import DataError
    from hpc_amp.train.checkpoint import CheckpointStore
    from hpc_amp.train.manifest import DamagedCheckpoint, read_manifest

    store = CheckpointStore.of_run(folder)

    def valid(step: int) -> bool:
        try:
            store.verify(step)
        except (DamagedCheckpoint, OSError) as error:
            store.pass_over(step, error)
            return False
        return True

    if wanted == "newest":
        newest = store.newest()
        if newest is None:
            raise DataError(f"there is no valid checkpoint in {folder}")
        return newest
    if wanted.isdecimal():
        if int(wanted) not in store.steps():
            steps = ", ".join(map(str, store.steps())) or "none"
            raise DataError(f"there is no checkpoint of step {wanted} in {folder}: it has {steps}")
        if not valid(int(wanted)):
            raise DataError(f"the checkpoint of step {wanted} in {folder} is damaged")
        return int(wanted)
    if wanted != "best":
        raise DataError(f"--checkpoint {wanted}: it is newest, best or a step")
    metrics: dict[int, float] = {}
    for step in store.steps():
        try:
            metric = read_manifest(store.path(step)).get("metric")
        except (DamagedCheckpoint, FileNotFoundError) as error:
            store.pass_over(step, error)
            continue
        if metric is not None and math.isfinite(metric):
            metrics[step] = metric
    for step in sorted(metrics, key=lambda step: metrics[step], reverse=not lowest):
        if valid(step):
            return step
    raise DataError(f"no valid checkpoint in {folder} was evaluated: take the newest one")


def _load(networks: dict[str, nn.Module], place: Path, stem: str) -> None:
    """Load the weights of the checkpoint in `place`. Raises DataError where it was removed."""
    from hpc_amp.data.errors import DataError
    from hpc_amp.models.weights import load_weights
    from hpc_amp.tasks.base import ModelError

    for name, network in networks.items():
        try:
            load_weights(network, str(place / f"{stem}.pt"), name)
        except ModelError:
            if place.is_dir():
                raise
            raise DataError(
                f"{place} was removed while it was loaded: the run still trains, and "
                "train.checkpoint says which checkpoints it keeps. Start again, or name a newer one"
            ) from None


def make_request(
    world: World,
    inputs: Path,
    output: Path,
    style: str | os.PathLike[str] | None,
    instances: str | os.PathLike[str] | None,
    points: str | os.PathLike[str] | None,
    direction: str | None,
    seed: int,
    batch_size: int,
    fps: int | None = None,
    finetune: int | None = None,
) -> Request:
    """The request of this rank. Rank 0 finds the files, because a shared file system may show other
    ones on another node. A collective call. Raises InputError."""
    from hpc_amp.data.together import from_main
    from hpc_amp.errors import InputError
    from hpc_amp.gan.generation import Request
    from hpc_amp.gan.inputs import find_files, folder_of
    from hpc_amp.gan.video.mp4 import check_video_package

    if batch_size < 1:
        raise InputError(f"the batch size {batch_size} is not positive")
    if fps is not None:
        check_video_package()
        if fps < 1:
            raise InputError(f"{fps} frames a second are too few")
    if finetune is not None and finetune < 1:
        raise InputError(f"{finetune} steps of fine-tuning are too few")

    others = {"style": style, "instances": instances, "points": points}
    paths = {name: Path(place) for name, place in others.items() if place}
    files, styles = from_main(world, lambda: find_files(inputs, output, **paths))
    return Request(
        folder=folder_of(inputs),
        files=files,
        style=tuple(styles),
        instances=paths.get("instances"),
        points=paths.get("points"),
        direction=direction,
        seed=seed,
        batch_size=batch_size,
        fps=fps,
        finetune=finetune,
        rank=world.rank,
        ranks=world.size,
    )


def write_images(
    loaded: LoadedGenerator, request: Request, output: Path, tell: Callable[[int], object]
) -> int:
    """Write each image under the name of its input, as PNG, and `tell` how many there are after
    each. With `request.fps`, also write the frames of each folder as `video.mp4` beside them.
    Returns how many images there are. Raises JobError where the disk is full, or `output` is not
    writable."""
    from hpc_amp.gan.inputs import output_of
    from hpc_amp.gan.video.mp4 import video_file

    made = 0
    # All frames of a sequence follow each other.
    for parent, frames in itertools.groupby(loaded.images(request), lambda pair: pair[0].parent):
        folder = output / parent.relative_to(request.folder)
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            film = None
            if request.fps is not None:
                with _writing(folder):
                    film = stack.enter_context(video_file(folder / VIDEO, request.fps))
            for file, image in frames:
                pixels = _pixels(image)
                with _writing(folder):
                    _write_png(output_of(file, request.folder, output), pixels)
                    if film is not None:
                        film(pixels)
                made += 1
                tell(made)
            with _writing(folder):
                stack.close()  # writes the end of the video
    return made


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Raises JobError where something cannot be written to a folder."""
    try:
        yield
    except OSError as error:
        raise JobError(f"{folder} cannot be written to: {error}") from error


def _pixels(image: Tensor) -> Tensor:
    """An image [3, H, W] with values from -1 to 1 as uint8 [H, W, 3] on the CPU."""
    pixels = image.float().cpu().div(2).add(0.5).clamp(0, 1).mul(255).round().byte()
    return pixels.permute(1, 2, 0).contiguous()


def _write_png(path: Path, pixels: Tensor) -> None:
    """Write an image uint8 [H, W, 3] atomically."""
    from PIL import Image

    with replacing(path) as new:
        Image.fromarray(pixels.numpy()).save(new, "PNG")


_STOPPING = signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2


@contextlib.contextmanager
def stops_cleanly() -> Iterator[None]:
    """A signal to stop ends the block by SystemExit, which removes the image and the video that are
    being written."""

    def stop(number: int, frame: object) -> None:
        for each in _STOPPING:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = [signal.signal(number, stop) for number in _STOPPING]
    try:
        yield
    finally:
        for number, handler in zip(_STOPPING, before, strict=True):
            signal.signal(number, handler)


class _Progress:
    """Prints now and then how many images of a rank are made."""

    def __init__(self, world: World, loaded: LoadedGenerator, request: Request) -> None:
        self.total = sum(map(len, loaded.task.generation_parts(request)))
        self.of = f" of rank {world.rank}" if world.size > 1 else ""
        self.quiet_until = time.monotonic() + REPORT_SECONDS

    def __call__(self, made: int) -> None:
        if time.monotonic() >= self.quiet_until:
            print(f"{made:,} of {self.total:,} images{self.of}", flush=True)
            self.quiet_until = time.monotonic() + REPORT_SECONDS


def main() -> int:
    """Run this rank."""
    arguments = _parser().parse_args()
    from hpc_amp.distributed.world import resolve

    world = resolve(os.environ)
    from hpc_amp.config.units import parse_duration
    from hpc_amp.distributed import setup

    job = _read_job(arguments.run)
    device = setup.choose_device(arguments.device, world)
    # The ranks only agree on the work, and then do their shares independently.
    setup.join(world, device, parse_duration(job.launch.timeout))
    request = make_request(
        world, arguments.input, arguments.output, arguments.style, arguments.instances,
        arguments.points, arguments.direction, arguments.seed, arguments.batch_size,
        arguments.fps, arguments.finetune,
    )  # fmt: skip
    loaded = load_generator(
        arguments.run,
        checkpoint=arguments.checkpoint,
        weights=arguments.weights,
        device=device,
        world=world,
    )
    setup.leave()
    if world.is_main:
        ranks = f", {world.size} ranks" if world.size > 1 else ""
        print(
            f"{len(request.files):,} images to make with the weights of step {loaded.step} "
            f"({loaded.weights}), {device.type}{ranks}",
            flush=True,
        )
    with stops_cleanly():
        made = write_images(loaded, request, arguments.output, _Progress(world, loaded, request))
    rank = f"rank {world.rank}: " if world.size > 1 else ""
    print(f"{rank}{made:,} images in {arguments.output}", flush=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = ArgumentParser(prog="python -m hpc_amp.train.generate", description=__doc__)
    parser.add_argument("run", type=Path, help="directory of the run")
    parser.add_argument("--input", type=Path, required=True, help="folder of inputs, or a file")
    parser.add_argument("--output", type=Path, required=True, help="folder of the images")
    parser.add_argument("--checkpoint", default="newest", help="newest, best or a step")
    parser.add_argument("--weights", default="auto", choices=["auto", "average", "networks"])
    parser.add_argument("--style", type=Path, help="image of a style, or folder of images")
    parser.add_argument("--instances", type=Path, help="folder of instance maps")
    parser.add_argument("--points", type=Path, help="folder of the points that inputs show")
    parser.add_argument("--direction", choices=["a2b", "b2a"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--fps", type=int, help="also write each sequence as a video")
    parser.add_argument("--finetune", type=int, help="steps on the references of each sequence")
    parser.add_argument("--device", default="auto", choices=["auto", "cuda", "cpu"])
    return parser


if __name__ == "__main__":
    run_program(main)
