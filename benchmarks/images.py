"""How fast training images come, beside other libraries: image files, and small images in memory.

    python benchmarks/images.py [files|memory] [--rounds 9] [--batches 24] [--workers 2]
                                [--quality 90] [--device cuda] [--json]

Files: 500 x 375 JPEGs that look like photographs to a decoder, made by this program; random resized
crop to 224, flip, normalise. In memory: 32 x 32 with crop and flip. Every contestant gives
normalised float32 batches on the CPU, and has the same number of threads or processes. With
`--device cuda`, hpc-amp's are on the GPU, and DALI decodes them there. DALI (`pip install
nvidia-dali-cuda120`) takes part if it is installed.

Rounds are interleaved in one process. Before each, the queues of all contestants are full and
everything is idle; the batches that were in the queue are taken first and do not count. CPU seconds
are those of this process and of all that it started.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import multiprocessing
import os
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from PIL import Image
from rounds import Values, machine, report
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision.io import ImageReadMode, decode_jpeg, read_file
from torchvision.transforms import v2

from hpc_amp.config import schema
from hpc_amp.data.prepare import prepare
from hpc_amp.distributed.world import World

SIDE = 224
BATCH = {"files": 32, "memory": 128}
"""Images in a batch."""
DIFFERENT = 100
"""How many different image files there are. Each has many names."""
IMAGES = {"files": 8000, "memory": 50_000}
"""Training images: names of files, or images in memory."""
QUEUED = 8
"""Batches that are taken before the clock starts; more than the queue of any contestant has."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ARCHIVE = "images.tar"
TICKS = os.sysconf("SC_CLK_TCK")
DEVICE = torch.device("cpu")
"""Where the batches of hpc-amp are."""


# -- images ----------------------------------------------------------------------------------------


def photograph(stream: torch.Generator) -> Image.Image:
    """An image whose frequencies are as strong as in photographs, which is what counts for a
    decoder."""
    height, width = 375, 500
    rows, columns = torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)[None]
    frequency = (rows.square() + columns.square()).sqrt()
    frequency[0, 0] = torch.inf
    noise = torch.randn(2, 3, *frequency.shape, generator=stream)
    bands = torch.fft.irfft2(torch.complex(*noise) / frequency, s=(height, width))
    bands = bands / bands.std((1, 2), keepdim=True)
    bands = bands * torch.tensor([50.0, 12, 12])[:, None, None] + 128
    pixels = bands.clamp(0, 255).byte().permute(1, 2, 0).contiguous()
    return Image.fromarray(pixels.numpy(), "YCbCr").convert("RGB")


def write_images(root: Path, quality: int, different: int) -> float:
    """An image folder with one class and so many different images, and the same in a tar file.
    Returns the mean size of an image file in KB."""
    train = root / "train" / "one"
    (root / "test" / "one").mkdir(parents=True)
    train.mkdir(parents=True)
    stream = torch.Generator().manual_seed(0)
    sizes = []
    for number in range(different):
        path = train / f"{number:03}-00.jpg"
        photograph(stream).save(path, quality=quality)
        sizes.append(path.stat().st_size)
        for link in range(1, IMAGES["files"] // different):
            os.link(path, train / f"{number:03}-{link:02}.jpg")
    os.link(path, root / "test" / "one" / "0.jpg")
    with tarfile.open(root / ARCHIVE, "w") as tar:
        tar.add(train.parent, "train")
        tar.add(root / "test", "test")
    return statistics.mean(sizes) / 1000


# -- contestants: endless batches ------------------------------------------------------------------


def ours(train: schema.Train) -> Iterator[Any]:
    """hpc-amp, as a job gets its batches."""
    training = prepare(train, World(), DEVICE).training
    for epoch in itertools.count():
        yield from training.epoch(epoch)


def our_files(
    root: Path, workers: int, decoder: Literal["pillow", "dali"] = "pillow", place: str = "."
) -> Iterator[Any]:
    """hpc-amp on image files at `place` below `root`."""
    data = schema.Data(
        name="imagefolder", root=root / place, in_memory=False, workers=workers, decoder=decoder
    )
    return ours(schema.Train(batch_size=BATCH["files"], data=data))


def our_memory(root: Path, workers: int) -> Iterator[Any]:
    """hpc-amp on images in memory."""
    data = schema.Data(
        name="synthetic", synthetic=schema.Synthetic(train=IMAGES["memory"], test=10)
    )
    return ours(schema.Train(batch_size=BATCH["memory"], data=data))


class Files(Dataset[Tensor]):
    """Image files, each read by `read` and changed by `change`."""

    def __init__(self, root: Path, read: Callable[[str], Any], change: Callable[[Any], Any]):
        self.paths = sorted(str(path) for path in (root / "train" / "one").iterdir())
        self.read, self.change = read, change

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> Tensor:
        image: Tensor = self.change(self.read(self.paths[number]))
        return image


class Memory(Dataset[Tensor]):
    """Small images in memory, each changed by `change`."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        self.pixels = torch.randint(0, 256, (IMAGES["memory"], 3, 32, 32), dtype=torch.uint8)
        self.change = change

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, number: int) -> Tensor:
        return self.change(self.pixels[number])


def one_thread(worker: int) -> None:
    """What torch's own loops do in a worker."""
    torch.set_num_threads(1)


def loader(data: Dataset[Tensor], batch: int, workers: int) -> Iterator[Any]:
    """torch's DataLoader, with an endless order so that no epoch ends."""
    sampler = RandomSampler(data, replacement=True, num_samples=10**9)  # type: ignore[arg-type]
    return iter(
        DataLoader(
            data, batch, sampler=sampler, num_workers=workers, worker_init_fn=one_thread,
            multiprocessing_context="forkserver",
        )
    )  # fmt: skip


def read_tensor(path: str) -> Tensor:
    """With torchvision's decoder."""
    return decode_jpeg(read_file(path), ImageReadMode.RGB)


def read_pillow(path: str) -> Image.Image:
    """With Pillow."""
    return Image.open(path).convert("RGB")


def torchvision_files(root: Path, workers: int) -> Iterator[Any]:
    """torchvision's decoder and transforms of tensors in a DataLoader."""
    change = v2.Compose(
        [
            v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD),
        ]
    )  # fmt: skip
    return loader(Files(root, read_tensor, change), BATCH["files"], workers)


def pillow_files(root: Path, workers: int) -> Iterator[Any]:
    """Pillow and torchvision's transforms of its images in a DataLoader."""
    change = v2.Compose(
        [
            v2.RandomResizedCrop(SIDE), v2.RandomHorizontalFlip(),
            v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD),
        ]
    )  # fmt: skip
    return loader(Files(root, read_pillow, change), BATCH["files"], workers)


def torchvision_memory(root: Path, workers: int) -> Iterator[Any]:
    """torchvision's transforms of tensors in a DataLoader."""
    change = v2.Compose(
        [
            v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD),
        ]
    )  # fmt: skip
    return loader(Memory(change), BATCH["memory"], workers)


def dali_files(root: Path, workers: int) -> Iterator[Any]:
    """DALI on the CPU: it decodes only the part that is used."""
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=BATCH["files"], num_threads=workers, device_id=None, seed=1)
    def pipeline() -> Any:
        content, label = fn.readers.file(file_root=str(root / "train"), random_shuffle=True)
        part = fn.decoders.image_random_crop(
            content, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
        )
        small = fn.resize(part, size=(SIDE, SIDE), interp_type=types.INTERP_LINEAR, antialias=True)
        images = fn.crop_mirror_normalize(
            small, mirror=fn.random.coin_flip(), output_layout="CHW",
            mean=[255 * mean for mean in MEAN], std=[255 * std for std in STD],
        )  # fmt: skip
        return images, label

    pipe = pipeline()
    pipe.build()
    while True:
        yield pipe.run()


@dataclass(frozen=True, slots=True)
class Contestant:
    """`batches` begins endless batches, `package` is what it needs. It gets `more` times as many of
    them in a round as others, so that a round is not too short to be timed."""

    batches: Callable[[Path, int], Iterator[Any]]
    package: str | None = None
    more: int = 1


CONTESTANTS = {
    "files": {
        "hpc-amp": Contestant(our_files),
        "hpc-amp from a tar file": Contestant(partial(our_files, place=ARCHIVE)),
        "hpc-amp with DALI": Contestant(partial(our_files, decoder="dali"), "nvidia-dali-cuda120"),
        "DALI": Contestant(dali_files, "nvidia-dali-cuda120"),
        "torchvision": Contestant(torchvision_files),
        "Pillow": Contestant(pillow_files),
    },
    "memory": {
        "hpc-amp": Contestant(our_memory, more=20),
        "torchvision": Contestant(torchvision_memory),
    },
}


# -- measuring -------------------------------------------------------------------------------------


def cpu_seconds() -> float:
    """CPU time of this process and of all living ones that it started, or they."""
    parent, ticks = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            number = int(entry.name)
            parent[number] = int(fields[1])
            ticks[number] = int(fields[11]) + int(fields[12])
    total = time.process_time()
    for number in ticks:
        above = parent[number]
        while above in parent and above != os.getpid():
            above = parent[above]
        if above == os.getpid():
            total += ticks[number] / TICKS
    return total


def wait_until_idle() -> None:
    """Wait until all queues are full: until nothing has used the CPU for a moment."""
    before = -1.0
    while cpu_seconds() - before > 0.03:
        before = cpu_seconds()
        time.sleep(0.4)


def measure(
    kind: str, root: Path, workers: int, rounds: int, batches: int
) -> tuple[Values, Values, dict[str, str]]:
    """Images a second and a CPU second of each contestant, and why others are missing."""
    present, missing = {}, {}
    for name, contestant in CONTESTANTS[kind].items():
        try:
            if contestant.package is not None:
                importlib.metadata.version(contestant.package)
            present[name] = contestant.batches(root, workers)
        except importlib.metadata.PackageNotFoundError:
            missing[name] = f"{contestant.package} is not installed"
    wall: Values = {name: [] for name in present}
    cpu: Values = {name: [] for name in present}
    for number in range(rounds + 1):
        # Every other round is in reverse order, so that no contestant always follows the same one.
        for name in list(present)[:: 1 if number % 2 == 0 else -1]:
            count = batches * CONTESTANTS[kind][name].more
            wait_until_idle()
            for _ in range(QUEUED):
                next(present[name])
            begin, cpu_begin = time.perf_counter(), cpu_seconds()
            for _ in range(count):
                next(present[name])
            if DEVICE.type == "cuda":
                torch.cuda.synchronize()
            seconds, used = time.perf_counter() - begin, cpu_seconds() - cpu_begin
            if number > 0:  # the first round warms up
                wall[name].append(count * BATCH[kind] / seconds)
                cpu[name].append(count * BATCH[kind] / used)
    return wall, cpu, missing


def main() -> None:
    """Measure and print."""
    global DEVICE
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("kind", nargs="?", choices=list(CONTESTANTS), help="default: both")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batches", type=int, default=24, help="that are timed in a round")
    parser.add_argument("--workers", type=int, default=2, help="threads or processes of each")
    parser.add_argument("--quality", type=int, default=90, help="of the JPEGs")
    parser.add_argument("--different", type=int, default=DIFFERENT, help="different JPEGs")
    parser.add_argument("--images", type=int, help="training images: files, and in memory")
    parser.add_argument("--batch", type=int, help="images in a batch")
    parser.add_argument("--device", default="cpu", help="of hpc-amp's batches: cpu or cuda")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    arguments = parser.parse_args()
    if arguments.images is not None:
        IMAGES.update(dict.fromkeys(IMAGES, arguments.images))
    if arguments.batch is not None:
        BATCH.update(dict.fromkeys(BATCH, arguments.batch))
    DEVICE = torch.device(arguments.device)
    torch.set_num_threads(1)
    # The server that all workers are forks of imports what takes longest.
    multiprocessing.set_forkserver_preload(["torchvision.transforms.v2", "hpc_amp.data.prepare"])
    facts = machine("torch", "torchvision", "pillow", "nvidia-dali-cuda120")
    facts |= {"rounds": arguments.rounds, "workers": arguments.workers}
    values: dict[str, Values] = {}
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        facts["kB_per_file"] = round(
            write_images(Path(folder), arguments.quality, arguments.different), 1
        )
        for kind in [arguments.kind] if arguments.kind else list(CONTESTANTS):
            wall, cpu, without = measure(
                kind, Path(folder), arguments.workers, arguments.rounds, arguments.batches
            )
            values |= {f"{kind}, images a second": wall, f"{kind}, images a CPU second": cpu}
            missing |= without
    report(facts, values, beside="hpc-amp", missing=missing, as_json=arguments.json)


if __name__ == "__main__":
    main()
