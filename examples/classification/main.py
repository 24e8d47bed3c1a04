"""Image classification with scenarios, on hpc-amp's engine.

    python main.py -a conv2 --dataname cifar10 --config cifar10_conv2_train --logterminal
    torchrun --nproc-per-node 4 main.py -a resnet50 --dataname imagenet --datapath /data/imagenet

docs/examples.md has what is written where.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from typing import Any, TextIO

from arguments import parse

DATA = {"fashionmnist": "fashion_mnist", "imagenet": "imagefolder"}
"""Names of data sets that are others in hpc-amp."""
UNTOUCHED = ("mnist", "fashionmnist")
"""Data sets whose images are not cropped or mirrored: a digit has one direction."""


def configuration(flags: argparse.Namespace, world_size: int, on_gpu: bool) -> Any:
    """The flags as a configuration of the engine. The course of the learning rate is `rates`."""
    from hpc_amp.config import schema
    from hpc_amp.tasks.classification.config import ClassificationConfig, Model

    precision = flags.precision
    if precision == "auto":
        precision = "fp16" if on_gpu else "fp32"
    momentum = flags.momentum if flags.optimizer == "SGD+M" else 0.0
    untouched = flags.dataname in UNTOUCHED
    return ClassificationConfig(
        model=Model(name=flags.arch.replace("vgg", "small_vgg")),
        data=schema.Data(
            name=DATA.get(flags.dataname, flags.dataname),
            root=flags.datapath,
            if_missing="synthetic" if flags.synthetic else "error",
            workers=flags.workers,
            augment=schema.Augment(crop=0, flip=False) if untouched else schema.Augment(),
        ),
        epochs=flags.epochs,
        batch_size=flags.batch_size * world_size,
        optimizer=schema.Optimizer(
            name="adam" if flags.optimizer == "Adam" else "sgd",
            lr=flags.lr,
            momentum=momentum,
            nesterov=flags.nesterov,
            weight_decay=flags.weight_decay,
        ),
        schedule=schema.Schedule(name="constant", warmup=0.0),
        precision=schema.Precision(mode=precision),
        channels_last=flags.channels_last,
        label_smoothing=flags.label_smoothing,
        log_every=flags.print_freq_tr,
        checkpoint=schema.Checkpointing(every="1epoch", keep=2),
    )


class Log:
    """Standard output that goes to a file, and to the terminal where that is wanted."""

    def __init__(self, file: TextIO, terminal: TextIO | None) -> None:
        self._outputs = [file] if terminal is None else [file, terminal]

    def write(self, text: str) -> None:
        """To all."""
        for output in self._outputs:
            output.write(text)

    def flush(self) -> None:
        """All."""
        for output in self._outputs:
            output.flush()


def main() -> int:
    """Train or evaluate one scenario."""
    flags = parse()
    # Before torch is imported, which looks at them once.
    if flags.gpu_ids is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(flags.gpu_ids)
    if flags.local_rank is not None:
        os.environ.setdefault("LOCAL_RANK", str(flags.local_rank))

    import torch
    from classifier import Classifier
    from curves import Curves
    from rates import rate_of
    from scenario import Scenario, begun, describe

    from hpc_amp.data.together import from_main
    from hpc_amp.distributed import setup
    from hpc_amp.distributed.world import resolve
    from hpc_amp.train import evaluate, fit

    world = resolve(os.environ)
    setup.join(world, setup.choose_device("auto", world), timeout_seconds=600)
    time = from_main(world, lambda: begun(flags.resume))
    scenario = Scenario(time, describe(flags, world.size), flags.dataname, flags.arch)
    curves = Curves(flags, scenario)
    train = configuration(flags, world.size, torch.cuda.is_available())
    out = flags.resume or scenario.checkpoints
    if flags.evaluate:
        task = partial(Classifier, flags=flags, record=lambda *_: None)
        metrics = evaluate(train, out, task=task)
        if world.is_main:
            print("  ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
        status = 0
    else:
        if world.is_main:
            _log(scenario, flags)
        task = partial(Classifier, flags=flags, record=curves.record)
        status = fit(train, out, task=task, observers=[curves], rate=rate_of(flags)).exit_status
    setup.leave()
    return status


def _log(scenario: Any, flags: argparse.Namespace) -> None:
    """From now on what is printed goes to the log."""
    scenario.log.parent.mkdir(parents=True, exist_ok=True)
    print(f"log: {scenario.log}", flush=True)
    terminal = sys.stdout if flags.logterminal else None
    sys.stdout = Log(scenario.log.open("a", buffering=1), terminal)
    print(f"{scenario.time}_{scenario.name}")
    for name, value in sorted(vars(flags).items()):
        print(f"{name}: {value}")


if __name__ == "__main__":
    from hpc_amp.train import run_program

    run_program(main)
