"""Each phase of a step exchanges its gradients once, whatever the number of its losses, backward
passes and loss scalers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support import dcgan, paired, vid2vid
from support.environment import REPOSITORY
from support.rank_trainings import run_on
from support.warm import Warm

pytestmark = pytest.mark.ranks

_SCRIPT = """
import json, sys
from collections import Counter
import torch.distributed as dist
from hpc_amp.config.schema import from_plain
from hpc_amp.tasks.registry import config_class
from hpc_amp.train import Observer, compiling, fit, run_program
from hpc_amp.train.update import PhaseUpdate

running = None
counts = Counter()

def count(what):
    if running is not None:
        counts[f"{running}: {what}"] += 1

def hook(network, bucket):
    if bucket.is_last():
        count(f"DDP {network}")
    gradients = bucket.buffer().div_(dist.get_world_size())
    return all_reduce(gradients, async_op=True).get_future().then(lambda done: done.value()[0])

class Hooks(Observer):
    def begin(self, engine):
        for update in engine.updates:
            for number, network in enumerate(update._distributed):
                network.register_comm_hook(number, hook)

all_reduce, run = dist.all_reduce, PhaseUpdate.run

def counted_all_reduce(*args, **kwargs):
    count("all_reduce")
    return all_reduce(*args, **kwargs)

def counted_run(update, *args, **kwargs):
    global running
    running = update.phase.name
    count("runs")
    try:
        return run(update, *args, **kwargs)
    finally:
        running = None

dist.all_reduce, PhaseUpdate.run = counted_all_reduce, counted_run
compiling.BACKEND = "eager"  # inductor takes minutes

def main():
    for folder, train in json.load(open(sys.argv[1])):
        counts.clear()
        made = fit(from_plain(config_class(train["task"]), train), folder, observers=[Hooks()])
        weights = made.summary["weights_sha256"]
        print(json.dumps({"run": folder, "counts": counts, "weights": weights}), flush=True)
    return 0

run_program(main)
"""
FP16 = {"mode": "fp16", "init_scale": 2.0**20, "growth_interval": 2}
FP32 = {"mode": "fp32"}
COMMON: dict[str, Any] = {
    "epochs": 1,
    "max_steps": 2,
    "device": "cpu",
    "accumulate": 2,
    "evaluate_every": 0,
}
DDP, OWN = "DDP 0", "all_reduce"
CASES: dict[str, tuple[dict[str, Any], dict[str, list[str]]]] = {
    "dcgan-fp32": (
        {**dcgan.TRAIN, "gan": dcgan.GAN, "precision": FP32},
        {"discriminator": [DDP], "generator": [DDP]},
    ),
    "dcgan-compiled": (
        {**dcgan.TRAIN, "gan": dcgan.GAN, "precision": FP32, "compile": True},
        {"discriminator": [DDP], "generator": [DDP]},
    ),
    # The losses of the discriminator have a scaler each.
    "dcgan-fp16": (
        {**dcgan.TRAIN, "gan": dcgan.GAN, "precision": FP16},
        {"discriminator": [OWN], "generator": [DDP]},
    ),
    "spade-fp16": (
        paired.plain_train("spade", precision=FP16),
        {"discriminator": [DDP], "generator": [DDP]},
    ),
    "spade-fp16-separate": (
        paired.plain_train("spade", precision=FP16, adversarial={"separate_scalers": True}),
        {"discriminator": [DDP], "generator": [OWN]},
    ),
    "vid2vid-fp32": (
        vid2vid.plain_train(precision=FP32),
        {"discriminator": [DDP, "DDP 1", "DDP 2"], "generator": [DDP]},
    ),
    # The first loss runs the critic alone, the second one a helper that only it has.
    "own": (
        {"task": "support.gan:Halves", "batch_size": 8, "precision": FP32},
        {"critic": [OWN, "DDP 1"], "generator": [DDP]},
    ),
}
"""For each training its keys, and how the gradients of each phase are exchanged."""


@pytest.fixture(scope="module")
def found(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What each rank said of each training."""
    folder = tmp_path_factory.mktemp("exchanges")
    script, plan = folder / "training.py", folder / "plan.json"
    script.write_text(_SCRIPT)
    trainings = [(str(folder / name), {**train, **COMMON}) for name, (train, _) in CASES.items()]
    plan.write_text(json.dumps(trainings))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(REPOSITORY / "tests"))
        said = run_on(warm, 2, script, plan)
    lines = [json.loads(line) for line in said.splitlines() if line.startswith('{"run"')]
    return {name: [line for line in lines if line["run"] == str(folder / name)] for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_each_phase_exchanges_once(name: str, found: dict[str, list[dict[str, Any]]]) -> None:
    first, second = found[name]
    assert first["counts"] == second["counts"]
    assert first["weights"] == second["weights"]
    seen, expected = first["counts"], {}
    for phase, exchanges in CASES[name][1].items():
        runs = expected[f"{phase}: runs"] = seen[f"{phase}: runs"]
        assert runs > 0
        for exchange in exchanges:
            expected[f"{phase}: {exchange}"] = runs
    assert seen == expected


def test_compiled_networks_train_as_others_do(found: dict[str, list[dict[str, Any]]]) -> None:
    assert found["dcgan-compiled"][0]["weights"] == found["dcgan-fp32"][0]["weights"]
