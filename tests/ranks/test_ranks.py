"""Several ranks: real processes that train together over gloo.

Four processes go through a plan of attempts (`support.rank_worker`) at the start of this module;
the tests then look at what is in the run directories.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.environment import REPOSITORY
from support.ports import free_ports
from support.training import curve
from support.warm import Warm

from hpc_amp.config.schema import to_plain
from hpc_amp.tasks.registry import job_from_plain

pytestmark = pytest.mark.ranks

STEPS = 16

COMMON: dict[str, Any] = {
    "model": {"name": "resnet8", "norm": "group", "width": 8},
    "data": {
        "name": "synthetic",
        "synthetic": {"train": 64, "test": 53, "image_size": 12, "classes": 4},
        "augment": {"crop": 1},
    },
    "batch_size": 16,
    "optimizer": {"lr": 0.2},
    "epochs": 4,
    "max_steps": STEPS,
    "log_every": 1,
    "device": "cpu",
}

# Overflows at once, and again each time that the scale has grown back.
FP16: dict[str, Any] = {
    **COMMON,
    "model": {"name": "resnet8", "norm": "group", "width": 4},
    "data": {**COMMON["data"], "synthetic": {**COMMON["data"]["synthetic"], "train": 128}},
    "precision": {"mode": "fp16", "init_scale": 2.0**24, "growth_interval": 2},
    "ema": 0.9,
    "accumulate": 2,
    "log_every": 2,  # some stops are between two reports
}


GAN: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 8,
    "accumulate": 2,
    "log_every": 1,
    "precision": {"mode": "fp16", "init_scale": 256.0},
    "device": "cpu",
}

GANS = {
    "TinyGan": ("real", "fake", "fooled"),
    "OnePass": ("real", "fake", "fooled", "near"),
    "Separate": ("real", "fake", "fooled", "near"),
}
"""Tasks of support.gan, and their losses."""


class Runs:
    """The runs of this module: `plan` collects attempts, `launch` lets ranks work on them."""

    def __init__(self, warm: Warm, folder: Path) -> None:
        self.warm = warm
        self.folder = folder
        self.entries: list[dict[str, Any]] = []

    def plan(
        self,
        name: str,
        train: dict[str, Any],
        size: int,
        *,
        attempt: int = 1,
        task: str = "classification",
        **stop: Any,
    ) -> None:
        run = self.folder / name
        if not run.exists():
            run.mkdir()
            job = job_from_plain({"name": name, "job": {"gpus_per_node": 0}, "train": train})
            (run / "job.json").write_text(json.dumps({"job": to_plain(job)}))
        entry = {"job": str(run / "job.json"), "attempt": attempt, "size": size, "task": task}
        self.entries.append({**entry, "stop": stop or None})

    def launch(self, size: int) -> None:
        """Let `size` processes go through the plan; fails with what they said where one does not
        come to its end."""
        for entry, port in zip(self.entries, free_ports(len(self.entries)), strict=True):
            entry["port"] = port
        file = self.folder / "plan.json"
        file.write_text(json.dumps(self.entries))
        worker = REPOSITORY / "tests" / "support" / "rank_worker.py"
        ended = [
            rank.wait() for rank in [self.warm.start(worker, file, str(r)) for r in range(size)]
        ]
        for rank, end in enumerate(ended):
            self.said(rank).write_text(end.stdout + end.stderr)
        if any(end.returncode for end in ended):
            pytest.fail("\n".join(self.said(rank).read_text() for rank in range(size)))

    def said(self, rank: int) -> Path:
        return self.folder / f"said-{rank}"

    def summary(self, name: str) -> dict[str, Any]:
        return json.loads((self.folder / name / "summary.json").read_text())

    def curves(self, name: str) -> dict[str, list[tuple[int, float]]]:
        names = ("train/loss", "train/lr", "eval/accuracy", "eval/loss")
        names += ("train/loss_scale", "train/skipped_steps")
        return {which: curve(self.folder / name, which) for which in names}

    def attempt(self, name: str, attempt: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The outcome of an attempt, and what its ranks noted, by rank."""
        folder = self.folder / name / "attempts" / str(attempt)
        outcome = json.loads((folder / "outcome.json").read_text())
        return outcome, [json.loads(path.read_text()) for path in sorted(folder.glob("rank*"))]


@pytest.fixture(scope="module")
def runs(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    made = Runs(warm, tmp_path_factory.mktemp("runs"))
    for size in (1, 2, 4):
        made.plan(f"parity-{size}", COMMON, size)
    made.plan("parity-halves", {**COMMON, "accumulate": 2}, 1)
    for size in (1, 2):
        made.plan(f"whole-{size}", FP16, size)
        stopped = f"stopped-{size}"
        made.plan(stopped, FP16, size, attempt=1, by="SIGTERM", rank=size - 1, step=3)
        made.plan(stopped, FP16, size, attempt=2, by="deadline")
        made.plan(stopped, FP16, size, attempt=3, by="file", rank=0, step=6)
        made.plan(stopped, FP16, size, attempt=4, by="SIGTERM", rank=0, step=10)
        made.plan(stopped, FP16, size, attempt=5)
        for name in GANS:
            made.plan(f"{name}-{size}", GAN, size, task=f"gan:{name}")
    made.plan("stopped-4", COMMON, 4, attempt=1, by="SIGTERM", rank=3, step=3)
    made.plan("stopped-4", COMMON, 4, attempt=2)
    for name in ("OnePass", "Separate"):
        made.plan(f"{name}-4", GAN, 4, task=f"gan:{name}")
        made.plan(f"{name}-stopped", GAN, 4, task=f"gan:{name}", by="file", rank=0, step=3)
        made.plan(
            f"{name}-stopped", GAN, 4, attempt=2, task=f"gan:{name}", by="file", rank=0, step=7
        )
        made.plan(f"{name}-stopped", GAN, 4, attempt=3, task=f"gan:{name}")
    made.launch(4)
    return made


@pytest.mark.parametrize("other", ["parity-halves", "parity-2", "parity-4"])
def test_the_loss_curve_is_that_of_one_rank(runs: Runs, other: str) -> None:
    expected, seen = runs.curves("parity-1"), runs.curves(other)
    assert [step for step, _ in expected["train/loss"]] == list(range(1, STEPS + 1))
    losses = [[loss for _, loss in curves["train/loss"]] for curves in (seen, expected)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert losses[1][-1] < 0.8 * losses[1][0], "the run learns"
    assert seen["train/lr"] == expected["train/lr"]
    assert seen["eval/accuracy"] == expected["eval/accuracy"]
    assert [step for step, _ in seen["eval/loss"]] == [4, 8, 12, 16]
    for (_, ours), (_, theirs) in zip(seen["eval/loss"], expected["eval/loss"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)
    assert runs.summary(other)["world_size"] == int(other[-1]) if other[-1].isdigit() else 1


def test_one_rank_alone_reports(runs: Runs) -> None:
    assert f"step {STEPS}/{STEPS}" in runs.said(0).read_text()
    assert [runs.said(rank).read_text() for rank in (1, 2, 3)] == [""] * 3
    for size in (2, 4):
        run = runs.folder / f"parity-{size}"
        assert len(list((run / "tensorboard").rglob("events.*"))) == 1
        lines = (run / "metrics.jsonl").read_text().splitlines()
        assert len(lines) == STEPS + 4


@pytest.mark.parametrize("size", [2, 4])
def test_exchanges_are_rare_and_after_the_same_steps_on_every_rank(runs: Runs, size: int) -> None:
    _, ranks = runs.attempt(f"parity-{size}", 1)
    assert len(ranks) == size
    first = ranks[0]["exchanges"]
    assert all(rank["exchanges"] == first for rank in ranks)
    assert first[:2] == [1, 2]
    assert all(rank["status"] == 0 for rank in ranks)


@pytest.mark.parametrize("size", [1, 2])
def test_a_run_stopped_four_times_ends_as_the_one_that_was_not(runs: Runs, size: int) -> None:
    """fp16 with a scale that overflows all the time, EMA, momentum, accumulation; stopped by a
    signal to one rank, by a deadline and by the stop file, three times of them in one epoch."""
    whole, stopped = f"whole-{size}", f"stopped-{size}"
    expected, seen = runs.summary(whole), runs.summary(stopped)
    for name in ("weights_sha256", "loss_scale", "skipped_steps", "steps", "metrics"):
        assert seen[name] == expected[name], name
    assert seen["outcome"] == "finished"
    assert runs.curves(stopped) == runs.curves(whole)
    skipped = dict(runs.curves(whole)["train/skipped_steps"])
    for stop in (3, 4, 6, 10):
        assert 0 < skipped[stop // 2 * 2] < skipped[STEPS], "overflows before and after every stop"
    ends = [(3, "TERMINATED"), (4, "DEADLINE"), (6, "ASKED"), (10, "TERMINATED")]
    for attempt, (step, cause) in enumerate(ends, 1):
        outcome, ranks = runs.attempt(stopped, attempt)
        assert (outcome["outcome"], outcome["step"]) == ("checkpointed", step)
        assert outcome["cause"] == cause
        assert [rank["status"] for rank in ranks] == [75] * size, "all ranks agree"
    assert runs.attempt(stopped, 5)[0]["outcome"] == "finished"
    pids = {rank["pid"] for attempt in range(1, 6) for rank in runs.attempt(stopped, attempt)[1]}
    assert len(pids) == 5 * size, "every attempt was a process of its own"


def test_a_resume_of_four_ranks_is_bit_exact_too(runs: Runs) -> None:
    """A sum over more than two ranks depends on its order, and so on the place of a gradient in its
    bucket, which DDP changes after the first step of a process."""
    assert runs.attempt("stopped-4", 1)[0]["step"] == 3
    digests = [runs.summary(name)["weights_sha256"] for name in ("stopped-4", "parity-4")]
    assert digests[0] == digests[1]
    assert runs.curves("stopped-4") == runs.curves("parity-4")


@pytest.mark.parametrize("name", GANS)
def test_a_gan_trains_the_same_on_two_ranks(runs: Runs, name: str) -> None:
    """Two networks in DDP, two optimizers, in parts; losses with scalers of their own, from one
    forward pass, and both."""
    for loss in GANS[name]:
        one, two = (curve(runs.folder / f"{name}-{size}", f"train/{loss}") for size in (1, 2))
        assert len(one) == 10
        assert [value for _, value in two] == pytest.approx([v for _, v in one], abs=2e-3)
        assert abs(one[-1][1] - one[0][1]) > 0.02, "it trains"


@pytest.mark.parametrize("name", ["OnePass", "Separate"])
def test_a_gan_of_four_ranks_with_a_later_phase_resumes_bit_exactly(runs: Runs, name: str) -> None:
    """Stopped in both epochs, of which the second has a phase more, on a network of another one."""
    whole, stopped = f"{name}-4", f"{name}-stopped"
    assert [runs.attempt(stopped, attempt)[0]["step"] for attempt in (1, 2)] == [3, 7]
    assert runs.summary(stopped)["weights_sha256"] == runs.summary(whole)["weights_sha256"]
    for loss in (*GANS[name], "flat"):
        curves = [curve(runs.folder / run, f"train/{loss}") for run in (whole, stopped)]
        assert curves[0] == curves[1]
        assert len(curves[0]) == (5 if loss == "flat" else 10)


def test_two_ranks_really_are_another_sum(runs: Runs) -> None:
    """The control for bit equality: the digest tells runs apart that differ by rounding alone."""
    digests = {runs.summary(f"parity-{size}")["weights_sha256"] for size in (1, 2, 4)}
    assert len(digests) == 3
