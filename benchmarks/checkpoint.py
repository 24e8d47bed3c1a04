"""How long a checkpoint delays the training loop, for a state of about 205 MB.

    python benchmarks/checkpoint.py [--rounds 9] [--json]

The state is that of a ResNet-50 with SGD's momentum. Each round trains a few steps and saves in
three ways, in turn, in one process:

    torch.save        to a file, without fsync, as in most loops
    durable           hpc-amp without `background`: hash, fsync, manifest, rename
    background        hpc-amp: the loop goes on, and a thread does the same

The stall is the time for which the loop waits: the call itself, and for `background` also the wait
before the next optimizer step, when the copy must be complete. It does not include that steps are
slower while the writer uses memory bandwidth and a core. Times of steps with and without the writer
are printed separately.

Exits with 1 if the stall of the background save of ResNet-50 is not at least 12 times shorter than
that of torch.save.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rounds import machine, ratio, report
from torch import nn

from hpc_amp.models import build_model
from hpc_amp.tasks.classification.config import Model
from hpc_amp.train.checkpoint import Checkpoint, CheckpointStore, Retention
from hpc_amp.train.saver import CheckpointSaver

WANTED_RATIO = 12.0
BESIDE = "beside the writer"
STEPS = 4
"""Steps after each save, in which the writer can finish."""


class Loop:
    """A minimal training of a large network: ResNet-50, or with `linear`, four layers of so many
    inputs and outputs."""

    def __init__(self, device: torch.device, linear: int | None) -> None:
        torch.manual_seed(0)
        network: nn.Module
        if linear is None:
            network = build_model(Model(name="resnet50"), classes=1000, channels=3, image_size=64)
            inputs = torch.randn(1, 3, 64, 64)
        else:
            network = nn.Sequential(*(nn.Linear(linear, linear) for _ in range(4)))
            inputs = torch.randn(1, linear)
        self.network = network.to(device)
        self.inputs = inputs.to(device)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=1e-4, momentum=0.9)
        self.step(lambda: None)

    def step(self, before_step: Callable[[], None]) -> tuple[float, float]:
        """Train one step. Returns its seconds, and those of them that `before_step` took."""
        begun = time.perf_counter()
        self.optimizer.zero_grad()
        self.network(self.inputs).sum().backward()
        waiting = time.perf_counter()
        before_step()
        waited = time.perf_counter() - waiting
        self.optimizer.step()
        if self.inputs.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - begun, waited

    def state(self) -> dict[str, Any]:
        return {
            "networks": {"model": self.network.state_dict()},
            "optimizers": {"train": self.optimizer.state_dict()},
        }

    def state_bytes(self) -> int:
        tensors = list(self.network.state_dict().values())
        tensors += [s["momentum_buffer"] for s in self.optimizer.state.values()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def measure(
    loop: Loop, rounds: int, folder: Path
) -> tuple[dict[str, list[float]], dict[str, list[float]], list[float]]:
    """The stall in seconds of each way and round, the seconds of steps with and without a writer,
    and how long it took until background saves were on the disk."""
    torch.set_num_threads(1)
    savers = {
        name: CheckpointSaver(
            CheckpointStore(folder / name, run="benchmark", retention=Retention(2), warn=_fail),
            background=name == "background",
            say=lambda text: None,
            warn=_fail,
        )
        for name in ("durable", "background")
    }
    savers["background"].reserve(loop.state())
    savers["background"].finish()
    stalls: dict[str, list[float]] = {"torch.save": [], "durable": [], "background": []}
    steps: dict[str, list[float]] = {"alone": [], BESIDE: []}
    durable: list[float] = []
    for number in range(1, rounds + 1):
        for name in list(stalls)[:: 1 if number % 2 else -1]:
            stalls[name].append(_save(name, number, loop, savers, folder, steps))
            if name == "background":
                durable.append(savers[name].seconds)
    return stalls, steps, durable


def _save(
    name: str,
    number: int,
    loop: Loop,
    savers: dict[str, CheckpointSaver],
    folder: Path,
    steps: dict[str, list[float]],
) -> float:
    """Save in one way and train the next steps. Returns the stall in seconds."""
    begun = time.perf_counter()
    if name == "torch.save":
        torch.save(loop.state(), folder / "plain.pt")
        stall = time.perf_counter() - begun
    else:
        buffers = list(loop.network.buffers())
        savers[name].save(Checkpoint(number, {}, loop.state()), {}, changing=buffers)
        stall = time.perf_counter() - begun
    saver = savers["background"]
    for _ in range(STEPS):
        writing = saver.is_writing
        seconds, waited = loop.step(saver.settle)
        stall += waited
        steps[BESIDE if writing else "alone"].append(seconds - waited)
    saver.finish()
    return stall


def _fail(text: str) -> None:
    raise SystemExit(f"the measurement is not valid: {text}")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", type=Path, help="where to write; default: a temporary folder")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--linear", type=int, help="four layers of this size, for another state")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    arguments = parser.parse_args()
    loop = Loop(arguments.device, arguments.linear)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        stalls, steps, durable = measure(loop, arguments.rounds, Path(folder))
    times = 1 / ratio(stalls["background"], stalls["torch.save"])["ratio"]
    facts = {
        **machine("torch"),
        "device": str(arguments.device),
        "state_mb": round(loop.state_bytes() / 1e6, 1),
        "rounds": arguments.rounds,
        "step_ms_alone": round(statistics.median(steps["alone"]) * 1e3, 1),
        # With a small state, the writer has always finished before the next step.
        "step_ms_beside_the_writer": round(statistics.median(steps[BESIDE] or [0]) * 1e3, 1),
    }
    written = {"torch.save": stalls["torch.save"], "durable": stalls["durable"]}
    report(
        facts,
        {"stall, seconds": stalls, "written, seconds": {**written, "background": durable}},
        beside="torch.save",
        missing={},
        as_json=arguments.json,
    )
    if not arguments.json:
        print(f"The stall of the background save is {times:.1f} times shorter than torch.save's.")
    if arguments.linear is None and times < WANTED_RATIO:
        print(f"The documentation promises {WANTED_RATIO:g} times.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
