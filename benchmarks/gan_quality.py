"""Does mixed precision reduce the quality of a GAN? DCGAN on Fashion-MNIST in fp32, bf16 and fp16.

    OMP_NUM_THREADS=1 python benchmarks/gan_quality.py /usr/share/datasets/fashion-mnist

The folder contains the original files, such as those of Debian's package `dataset-fashion-mnist`.
All number formats are trained with the same seeds: the same initial weights, images and latent
vectors, in the same order. Generated images are compared with all test images by the Fréchet
distance on a small fixed feature network (`hpc_amp.gan.frechet`); distances of images of
known quality are printed first. `--json FILE` writes all results, `--picture FILE` shows images of
all formats side by side.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import math
import platform
import statistics
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from hpc_amp.config.schema import (
    Augment,
    Checkpointing,
    Data,
    Precision,
    Schedule,
    to_plain,
)
from hpc_amp.distributed.world import World
from hpc_amp.gan.frechet import FeatureNetwork, frechet_distance, moments
from hpc_amp.tasks.dcgan.config import DcganConfig, Gan
from hpc_amp.tasks.dcgan.task import REAL, Dcgan
from hpc_amp.train import Observer, fit

MODES = ("fp32", "bf16", "fp16")
T_95 = {2: 4.303, 4: 2.776, 6: 2.447, 8: 2.306}
"""Student's t for a two-sided confidence of 95 %, by degrees of freedom."""


def settings(flags: argparse.Namespace, mode: str, seed: int, steps: int) -> DcganConfig:
    """The settings of one training, which is small because fp16 convolutions are slow on CPUs."""
    return DcganConfig(
        gan=Gan(
            image_size=32, latent=32, generator_width=8, discriminator_width=8, lr=5e-4, pictures=36
        ),
        data=Data(
            name="fashion_mnist", root=flags.data, download=False, augment=Augment(flip=False)
        ),
        epochs=math.ceil(steps * 32 / 60_000),
        max_steps=steps,
        batch_size=32,
        schedule=Schedule(name="constant", warmup=0.0),
        precision=Precision(mode=mode),
        ema=0.99,
        evaluate_every=1000,
        log_every=100,
        checkpoint=Checkpointing(every="1h", keep=2),
        seed=seed,
        device="cpu",
    )


class Scales(Observer):
    """Keeps the loss scales at the beginning and the end of an attempt."""

    def begin(self, engine: Any) -> None:
        self.at_begin = self._scales(engine)

    def end(self, engine: Any) -> None:
        self.at_end = self._scales(engine)
        self.skipped = engine.report.skipped_steps()

    @staticmethod
    def _scales(engine: Any) -> dict[str, dict[str, Any]]:
        return {n: s.state_dict() for update in engine.updates for n, s in update.scalers.items()}


def train(flags: argparse.Namespace, mode: str, seed: int, out: Path) -> dict[str, Any]:
    """Train to each of `--steps` in turn, each time in a new attempt that resumes."""
    distances, scales, begun = {}, {}, time.process_time()
    for steps in flags.steps:
        seen = Scales()
        with contextlib.redirect_stdout(io.StringIO()):
            fitted = fit(settings(flags, mode, seed, steps), out, observers=[seen])
        if fitted.outcome != "finished":
            raise SystemExit("stopped")
        if scales and seen.at_begin != scales:
            raise RuntimeError(f"{mode}: the loss scales after a resume differ from those saved")
        scales = seen.at_end
        distances[steps] = fitted.metrics["frechet_random"]
    return {
        "mode": mode,
        "seed": seed,
        "frechet_random": distances,
        "loss_scales": {name: state["scale"] for name, state in scales.items()},
        "skipped_updates": seen.skipped,
        "cpu_seconds": round(time.process_time() - begun, 1),
    }


def known_images(flags: argparse.Namespace) -> tuple[dict[str, float], Tensor]:
    """The distances of images of known quality from the test images, and some real images."""
    task = Dcgan(settings(flags, "fp32", 0, 1), World(), torch.device("cpu"))
    data = task.prepare_data()
    features = FeatureNetwork(1)
    test = sum(
        moments(features(batch)) for kind, batch in task.evaluation_batches() if kind == REAL
    )
    parts = (images for micro_batches in data.epoch(0) for images, _ in micro_batches)
    real = torch.cat(list(itertools.islice(parts, 10_000 // 32 + 1)))[:10_000]
    stream = torch.Generator().manual_seed(0)
    noise = torch.rand(real.shape, generator=stream) * 2 - 1
    torch.manual_seed(0)
    untrained = task.build_networks()["generator"]
    with torch.no_grad():
        first = untrained(torch.randn(10_000, 32, generator=stream))
    kinds = {
        "training images": real,
        "training images, 10 % noise": real.lerp(noise, 0.1),
        "training images, blurred over 3x3 pixels": F.avg_pool2d(real, 3, 1, 1),
        "training images, moved by 2 pixels": real.roll(2, 3),
        "100 training images again and again": real[:100].repeat(100, 1, 1, 1),
        "images of an untrained generator": first,
        "noise": noise,
    }
    distances = {
        name: frechet_distance(test, sum(moments(features(part)) for part in images.split(500)))
        for name, images in kinds.items()
    }
    return distances, real[:36]


def compare(runs: list[dict[str, Any]], steps: int) -> dict[str, Any]:
    """For each format, mean and standard deviation over the seeds, and Welch's t against fp32."""
    by_mode: dict[str, list[float]] = {}
    for run in runs:
        by_mode.setdefault(run["mode"], []).append(run["frechet_random"][steps])
    base = by_mode["fp32"]
    table: dict[str, Any] = {}
    for mode, values in by_mode.items():
        table[mode] = {"mean": statistics.mean(values), "sd": statistics.stdev(values)}
        error = (
            math.sqrt(statistics.variance(values) + statistics.variance(base)) / len(base) ** 0.5
        )
        t = (statistics.mean(values) - statistics.mean(base)) / error
        table[mode] |= {"t": t, "apart": abs(t) > T_95[2 * len(base) - 2]}
    return table


def save_picture(file: Path, real: Tensor, folders: dict[str, Path]) -> None:
    """Write a picture with real images and, to their right, generated ones of each run."""
    from torchvision.utils import make_grid, save_image

    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "real.png"
        save_image(make_grid(real / 2 + 0.5, nrow=6), first)
        newest = [sorted((path / "samples").iterdir())[-1] for path in folders.values()]
        panels = [Image.open(path).convert("L") for path in (first, *newest)]
        width, height = panels[0].size
        whole = Image.new("L", ((width + 10) * len(panels) - 10, height), 255)
        for position, panel in enumerate(panels):
            whole.paste(panel, (position * (width + 10), 0))
        whole.save(file, optimize=True)


def main() -> None:
    """Train all formats, print the results, and write the files that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="folder with the files of Fashion-MNIST")
    parser.add_argument("--steps", type=int, nargs="+", default=[250, 750, 3000])
    parser.add_argument("--seeds", type=int, default=3, choices=(2, 3, 4, 5))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    flags = parser.parse_args()
    if not list(Path(flags.data).glob("**/train-images-idx3-ubyte*")):
        parser.error(f"{flags.data} has no Fashion-MNIST; apt-get install dataset-fashion-mnist")

    known, real = known_images(flags)
    print("Fréchet distance from the 10,000 test images, on the small fixed feature network:")
    for name, distance in known.items():
        print(f"  {distance:9.5f}  {name}")
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for seed, mode in itertools.product(range(flags.seeds), MODES):
            runs.append(train(flags, mode, seed, Path(folder, f"{mode}-{seed}")))
            shown = "  ".join(f"{s} steps {d:.5f}" for s, d in runs[-1]["frechet_random"].items())
            scales = {name: f"{scale:g}" for name, scale in runs[-1]["loss_scales"].items()}
            skipped = f"  scales {scales}, {runs[-1]['skipped_updates']} skipped" if scales else ""
            print(f"seed {seed}  {mode}  {shown}  {runs[-1]['cpu_seconds']} s{skipped}", flush=True)
        if flags.picture:
            save_picture(flags.picture, real, {mode: Path(folder, f"{mode}-0") for mode in MODES})
    table = compare(runs, flags.steps[-1])
    print(f"after {flags.steps[-1]} steps, over {flags.seeds} seeds:")
    for mode, row in table.items():
        line = f"  {mode}  {row['mean']:.5f} +- {row['sd']:.5f}"
        if mode != "fp32":
            verdict = "differs" if row["apart"] else "no significant difference"
            line += f"  t against fp32 {row['t']:+.2f}: {verdict}"
        print(line)
    if flags.json:
        facts = {
            "date": date.today().isoformat(),
            "torch": torch.__version__,
            "machine": platform.machine(),
            "threads": torch.get_num_threads(),
            "steps": flags.steps,
            "train": to_plain(settings(flags, "fp32", 0, flags.steps[-1])),
            "known_images": known,
            "runs": runs,
            "comparison": table,
        }
        flags.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
