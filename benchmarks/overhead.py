"""How much slower the engine is than a hand-written loop, with steps of about a millisecond.

    python benchmarks/overhead.py [--rounds 9] [--steps 500] [--json]

Every contestant trains the same network on the same batches at the same learning rates, on one CPU
thread or a GPU (`--device cuda`), and has to reach the same losses to a millionth. `as it comes` is
hpc-amp with the fused kernel of the optimizer, which it chooses by itself; the others run without.
Rounds are interleaved in one process. The result is the median of the ratios in each round. On a
busy machine, `quiet` is disturbed least: the CPU time of the training thread in the fastest tenth
of the steps. Steps with a report are not among these.

The engine does what it does in a job: every 50 steps it reports to metrics.jsonl, TensorBoard, the
progress file and the log; it looks for signals, the stop file and a later attempt; its sentry
watches over it; and it observes the checkpoint interval. The hand-written loop prints a line every
50 steps. Lightning and accelerate, if installed, run without logger, checkpoints and progress bar.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import logging
import math
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from rounds import Values, machine, report
from torch import Tensor, nn

from hpc_amp.config.schema import Optimizer, Train
from hpc_amp.distributed.world import World
from hpc_amp.tasks.base import Losses, Networks, Phase, Task, TrainingData
from hpc_amp.train.engine import Engine
from hpc_amp.train.randomness import seed_everything
from hpc_amp.train.rundir import RunDirectory
from hpc_amp.train.schedule import rate_factor
from hpc_amp.train.sentry import Sentry
from hpc_amp.train.stopping import StopWatch

WARMUP = 50
BATCH = 32
LOG_EVERY = 50
OPTIMIZER = Optimizer(lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=False)
"""Without the fused kernel, which torch does not choose by itself, for all but one contestant."""

Batch = tuple[Tensor, Tensor]


class Clocked:
    """Batches that measure the time of `steps` steps, after a warm-up and before some more steps,
    so that neither the start nor the end of a training counts."""

    def __init__(self, steps: int, device: torch.device) -> None:
        stream = torch.Generator().manual_seed(1)
        self.steps = steps
        self.device = device
        self.total = WARMUP + steps + LOG_EVERY
        self.samples = [
            (
                torch.randn(BATCH, 3072, generator=stream).to(device),
                torch.randint(10, (BATCH,), generator=stream).to(device),
            )
            for _ in range(64)
        ]
        self.seconds = self.cpu_seconds = 0.0
        self.each: list[float] = []
        """CPU seconds of the training thread in each of the steps."""

    def __len__(self) -> int:
        return self.total

    def __iter__(self) -> Iterator[Batch]:
        begin = cpu_begin = 0.0
        marks: list[float] = []
        for step in range(self.total):
            marks.append(time.thread_time())
            if step in (WARMUP, WARMUP + self.steps) and self.device.type == "cuda":
                torch.cuda.synchronize()
            if step == WARMUP:
                begin, cpu_begin = time.perf_counter(), time.process_time()
            if step == WARMUP + self.steps:
                self.seconds = time.perf_counter() - begin
                self.cpu_seconds = time.process_time() - cpu_begin
                timed = marks[WARMUP:]
                self.each = [end - start for start, end in itertools.pairwise(timed)]
            yield self.samples[step % len(self.samples)]


def network() -> nn.Module:
    """The network, with the initial weights that the engine gives it."""
    seed_everything(0)
    return nn.Sequential(nn.Linear(3072, 128), nn.ReLU(), nn.Linear(128, 10))


def optimizer_for(model: nn.Module) -> torch.optim.SGD:
    """The optimizer of all contestants."""
    settings = {"momentum": OPTIMIZER.momentum, "nesterov": True}
    return torch.optim.SGD(
        model.parameters(), lr=OPTIMIZER.lr, weight_decay=OPTIMIZER.weight_decay, **settings
    )


# -- contestants: each trains on the batches and returns the mean loss of every 50 steps ----------


def by_hand(batches: Clocked, folder: Path) -> list[float]:
    """A hand-written loop."""
    train, losses = Train(), []
    model = network().to(batches.device)
    optimizer = optimizer_for(model)
    running = torch.zeros((), device=batches.device)
    for step, (images, labels) in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = OPTIMIZER.lr * rate_factor(train.schedule, step, len(batches))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        running += loss.detach()
        if (step + 1) % LOG_EVERY == 0:
            losses.append((running / LOG_EVERY).item())
            running.zero_()
            print(f"step {step + 1}  loss {losses[-1]:.4f}", flush=True)
    return losses


def by_default_engine(batches: Clocked, folder: Path) -> list[float]:
    """hpc-amp with the kernel of the optimizer that it chooses by itself."""
    return by_engine(batches, folder, dataclasses.replace(OPTIMIZER, fused=None))


def by_engine(batches: Clocked, folder: Path, optimizer: Optimizer = OPTIMIZER) -> list[float]:
    """hpc-amp, as in a job."""

    class Data(TrainingData):
        samples = len(batches) * BATCH
        steps_per_epoch = len(batches)

        def epoch(self, epoch: int, start: int = 0) -> Iterator[list[Batch]]:
            for batch in batches:
                yield [batch]

    class Mlp(Task):
        name = data_name = "mlp"

        def prepare_data(self) -> TrainingData:
            return Data()

        def build_networks(self) -> dict[str, nn.Module]:
            return {"model": network()}

        def phases(self) -> tuple[Phase, ...]:
            return (Phase("train", ("model",), ("loss",), optimizer),)

        def losses(self, phase: str, batch: Batch, networks: Networks) -> Iterator[Losses]:
            images, labels = batch
            yield {"loss": F.cross_entropy(networks["model"](images), labels)}

        def evaluation_batches(self) -> Iterator[Batch]:
            return iter(())

        def evaluate(self, batch: Batch, networks: Networks) -> dict[str, Tensor]:
            return {}

        def summarize(self, sums: dict[str, float]) -> dict[str, float]:
            return {}

    train = Train(epochs=1, batch_size=BATCH, log_every=LOG_EVERY, optimizer=optimizer)
    run = RunDirectory(folder, 1)
    run.attempt_path.mkdir(parents=True)
    watch = StopWatch(stop_at=time.time() + 86400, stop_file=run.stop_file, successor=run.successor)
    sentry = Sentry(run, watch, rank=0, grace=30.0)
    sentry.listen()
    sentry.limit(600.0)
    task = Mlp(train, World(), batches.device)
    engine = Engine(task, train, World(), batches.device, run, watch, sentry)
    engine.fit()
    engine.tracker.close()
    sentry.close()
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [line["train/loss"] for line in map(json.loads, lines) if "train/loss" in line]


def by_accelerate(batches: Clocked, folder: Path) -> list[float]:
    """Hugging Face accelerate."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=batches.device.type == "cpu")
    train, losses = Train(), []
    plain = network()
    model, optimizer = accelerator.prepare(plain, optimizer_for(plain))
    running = torch.zeros((), device=batches.device)
    for step, (images, labels) in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = OPTIMIZER.lr * rate_factor(train.schedule, step, len(batches))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        accelerator.backward(loss)
        optimizer.step()
        running += loss.detach()
        if (step + 1) % LOG_EVERY == 0:
            losses.append((running / LOG_EVERY).item())
            running.zero_()
    return losses


def by_lightning(batches: Clocked, folder: Path) -> list[float]:
    """Lightning, with everything switched off that can be."""
    import lightning

    train, losses = Train(), []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = network()
            self.running = torch.zeros((), device=batches.device)

        def training_step(self, batch: Batch, index: int) -> Tensor:
            images, labels = batch
            for group in self.optimizers(use_pl_optimizer=False).param_groups:
                group["lr"] = OPTIMIZER.lr * rate_factor(train.schedule, index, len(batches))
            loss = F.cross_entropy(self.model(images), labels)
            self.running += loss.detach()
            if (index + 1) % LOG_EVERY == 0:
                losses.append((self.running / LOG_EVERY).item())
                self.running.zero_()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer_for(self.model)

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    trainer = lightning.Trainer(
        accelerator=batches.device.type, devices=1, max_epochs=1, logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(Module(), batches)
    return losses


Contestant = Callable[[Clocked, Path], list[float]]
CONTESTANTS: dict[str, tuple[Contestant, str | None]] = {
    "by hand": (by_hand, None),
    "hpc-amp": (by_engine, None),
    "as it comes": (by_default_engine, None),
    "accelerate": (by_accelerate, "accelerate"),
    "Lightning": (by_lightning, "lightning"),
}
"""For each contestant, how it trains and the package that it needs."""


# -- measuring -----------------------------------------------------------------------------------


def installed() -> tuple[dict[str, Contestant], dict[str, str]]:
    """The contestants that can run, and why others are missing."""
    present, missing = {}, {}
    for name, (train, package) in CONTESTANTS.items():
        if package is None or find_spec(package):
            present[name] = train
        else:
            missing[name] = f"{package} is not installed"
    return present, missing


def measure(
    contestants: dict[str, Contestant], rounds: int, steps: int, device: torch.device
) -> tuple[Values, Values, Values]:
    """Milliseconds of a step: wall time, CPU time, and CPU time of the training thread in the
    fastest tenth of the steps, of each contestant in each round. Exits if the losses of any two
    differ."""
    torch.set_num_threads(1)
    batches = Clocked(steps, device)
    wall: Values = {name: [] for name in contestants}
    cpu: Values = {name: [] for name in contestants}
    quiet: Values = {name: [] for name in contestants}
    expected: list[float] | None = None
    for number in range(rounds):
        # Every other round is in reverse order, so that no contestant always follows the same one.
        for name in list(contestants)[:: 1 if number % 2 == 0 else -1]:
            losses = _run(contestants[name], batches)
            expected = expected or losses
            # Not exactly equal, because the means are summed up in different orders.
            pairs = zip(losses, expected, strict=True)
            if not all(math.isclose(ours, theirs, rel_tol=1e-6) for ours, theirs in pairs):
                raise SystemExit(f"{name} has other losses than the loops before it")
            wall[name].append(batches.seconds / steps * 1e3)
            cpu[name].append(batches.cpu_seconds / steps * 1e3)
            quiet[name].append(statistics.quantiles(batches.each, n=10)[0] * 1e3)
    return wall, cpu, quiet


def _run(train: Contestant, batches: Clocked) -> list[float]:
    with (
        tempfile.TemporaryDirectory() as name,
        (Path(name) / "log").open("w") as log,
        contextlib.redirect_stdout(log),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        return train(batches, Path(name) / "run")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=500, help="timed steps of a round")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    arguments = parser.parse_args()
    if arguments.steps % LOG_EVERY:
        parser.error(f"--steps: a multiple of {LOG_EVERY}, so that all report after the same steps")
    contestants, missing = installed()
    wall, cpu, quiet = measure(contestants, arguments.rounds, arguments.steps, arguments.device)
    report(
        {
            **machine("torch", *(package for _, package in CONTESTANTS.values() if package)),
            "device": str(arguments.device),
            "rounds": arguments.rounds,
            "steps": arguments.steps,
        },
        {"wall ms": wall, "CPU ms": cpu, "quiet CPU ms": quiet},
        beside="by hand",
        missing=missing,
        as_json=arguments.json,
    )
    if not arguments.json:
        print("The losses of all contestants were equal to a millionth.")


if __name__ == "__main__":
    main()
