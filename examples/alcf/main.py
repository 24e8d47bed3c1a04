"""Mixed precision on CIFAR-10: the command line of the ALCF workshops' walkthrough.

    python main.py --steps 5 --model resnet18                    # fp32
    python main.py --steps 5 --model resnet18 --fp16 -s          # fp16 autocast, dynamic loss scale
    torchrun --nproc-per-node 4 main.py -n 5 -m resnet50 -p --fp16 -s

The flags are turned into a configuration of hpc-amp, whose engine trains; docs/examples.md has what
differs from the workshop's own script.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

MODELS = {
    **{name: name for name in ("densenet121", "densenet161", "densenet169", "densenet201")},
    **{name: name for name in ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")},
    **{f"shufflenetv2_{size}": f"shufflenet_v2_x{size.replace('.', '_')}"
       for size in ("0.5", "1.0", "1.5", "2.0")},
    **{f"vgg{layers}": f"small_vgg{layers}" for layers in (11, 13, 16, 19)},
    "googlenet": "googlenet",
    "lenet": "lenet5",
    "mobilenetv2": "mobilenet_v2",
}  # fmt: skip
"""The workshop's names of networks, and what they are called in hpc-amp and torchvision."""

NOT_HERE = (
    *("densenet-cifar", "dual-path-net-26", "dual-path-net-92", "mobilenet", "pnasneta"),
    *("pnasnetb", "preact-resnet18", "preact-resnet34", "preact-resnet50", "preact-resnet101"),
    *("preact-resnet152", "resnext29_2x64d", "resnext29_4x64d", "resnext29_8x64d"),
    *("resnext29_32x64d", "senet18", "shufflenetg2", "shufflenetg3"),
)
"""Those of its networks that exist neither here nor in torchvision."""

BATCH_SIZE = 128
WARMUP_EPOCHS = 5
RATE_FALLS_AT = (80, 120, 160, 180)


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The command line. Ends the program where it makes no sense."""
    from hpc_amp.train import ArgumentParser

    parser = ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add("--lr", type=float, default=0.1, help="peak learning rate (%(default)s)")
    add("--steps", "-n", type=int, default=200, metavar="N", help="epochs (%(default)s)")
    add("--gpu", "-p", action="store_true", help="fail where there is no GPU; one is used anyway")
    add("--fp16", action="store_true", help="fp16 autocast; the weights stay fp32")
    add("--loss_scaling", "-s", action="store_true", help="scale the loss, dynamically")
    add("--model", "-m", default="resnet50", help="network (%(default)s)")
    add("--data", default="data", metavar="FOLDER", help="of CIFAR-10 (%(default)s)")
    add("--synthetic", action="store_true", help="synthetic images where CIFAR-10 is not there")
    add("--out", default="weights", metavar="FOLDER", help="where results go (%(default)s)")
    flags = parser.parse_args(words)
    available = f"there are {', '.join(sorted(MODELS))}"
    if flags.model in NOT_HERE:
        parser.error(f"{flags.model} exists neither in hpc-amp nor in torchvision; {available}")
    if flags.model not in MODELS:
        parser.error(f"there is no network {flags.model!r}; {available}")
    if flags.steps < 1:
        parser.error(f"--steps {flags.steps}: at least one epoch is needed")
    if flags.loss_scaling and not flags.fp16:
        parser.error("--loss_scaling is for --fp16: in fp32 no gradient is lost to underflow")
    return flags


def configuration(flags: argparse.Namespace):
    """The flags as a configuration of the engine."""
    from hpc_amp.config import schema
    from hpc_amp.tasks.classification.config import ClassificationConfig, Model

    epochs = flags.steps
    # Without a scale, gradients below 6e-8 are lost: what the walkthrough wants to show.
    fixed = None if flags.loss_scaling else 1.0
    return ClassificationConfig(
        model=Model(name=MODELS[flags.model]),
        data=schema.Data(
            name="cifar10",
            root=flags.data,
            if_missing="synthetic" if flags.synthetic else "error",
        ),
        epochs=epochs,
        batch_size=BATCH_SIZE,
        optimizer=schema.Optimizer(lr=flags.lr, momentum=0.9, nesterov=False, weight_decay=5e-4),
        schedule=schema.Schedule(
            name="step",
            warmup=min(1.0, WARMUP_EPOCHS / epochs),
            milestones=[epoch / epochs for epoch in RATE_FALLS_AT if epoch < epochs],
            gamma=0.1,
        ),
        precision=schema.Precision(mode="fp16", static_scale=fixed)
        if flags.fp16
        else schema.Precision(),
        checkpoint=schema.Checkpointing(every="1epoch", keep=2),
        device="cuda" if flags.gpu else "auto",
    )


def main() -> int:
    """Train, and keep the weights of every epoch that is better than all before."""
    flags = parse()
    import torch

    from hpc_amp.train import Observer, fit

    folder = Path(flags.out, flags.model + ("_fp16" if flags.fp16 else ""))

    class BestWeights(Observer):
        def begin(self, engine):
            self.best = -1.0 if engine.best_value is None else engine.best_value
            if flags.fp16 and not flags.loss_scaling:
                engine.tracker.say(
                    "WARNING: --fp16 without --loss_scaling loses small gradients to underflow"
                )

        def evaluated(self, engine):
            accuracy = engine.metrics["accuracy"]
            if accuracy <= self.best or not engine.world.is_main:
                return
            self.best = accuracy
            epoch = engine.step // engine.data.steps_per_epoch
            path = folder / f"weights.{epoch:03d}.{100 * accuracy:.2f}.pt"
            state = {
                "net": engine.networks["model"].state_dict(),
                "acc": accuracy,
                "epoch": epoch,
            }
            torch.save(state, f"{path}.new")
            os.replace(f"{path}.new", path)

    # With a scale and without are two trainings, which are there to be compared.
    run = folder / ("run_scaled" if flags.loss_scaling else "run")
    return fit(configuration(flags), run, observers=[BestWeights()]).exit_status


if __name__ == "__main__":
    from hpc_amp.train import run_program

    run_program(main)
