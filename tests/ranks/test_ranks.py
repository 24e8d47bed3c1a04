"""Several ranks: real processes that train together over gloo.

Every group of processes goes through a plan of attempts (`support.rank_worker`), all at the start
of this module; the tests then look at what is in the run directories.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.environment import REPOSITORY, clean_environ
from support.training import curve

from hpc_amp.config.schema import Job, from_plain, to_plain

pytestmark = pytest.mark.ranks

STEPS, STEPS_PER_EPOCH = 30, 8

COMMON: dict[str, Any] = {
    "model": {"name": "resnet8", "norm": "group", "width": 8},
    "data": {
        "name": "synthetic",
        "synthetic": {"train": 256, "test": 101, "image_size": 16, "classes": 4},
        "augment": {"crop": 1},
    },
    "batch_size": 32,
    "optimizer": {"lr": 0.05},
    "epochs": 4,
    "max_steps": STEPS,
    "log_every": 1,
    "device": "cpu",
}

# Overflows at once, and again each time that the scale has grown back.
FP16: dict[str, Any] = {
    **COMMON,
    "max_steps": 20,
    "precision": {"mode": "fp16", "init_scale": 2.0**24, "growth_interval": 2},
    "ema": 0.9,
    "accumulate": 2,
}


class Runs:
    """The runs of this module: `entry` plans an attempt, `launch` lets ranks work on a plan."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def entry(self, name: str, train: dict[str, Any], *, attempt: int = 1, **stop: Any) -> Any:
        run = self.folder / name
        if not run.exists():
            run.mkdir()
            job = from_plain(Job, {"name": name, "job": {"gpus_per_node": 0}, "train": train})
            (run / "job.json").write_text(json.dumps({"job": to_plain(job)}))
        return {"job": str(run / "job.json"), "attempt": attempt, "stop": stop or None}

    def launch(self, size: int, plan: list[Any]) -> None:
        """Run `size` processes on `plan`; fails with what they said where one does not succeed."""
        for entry, port in zip(plan, free_ports(len(plan)), strict=True):
            entry["port"] = port
        file = self.folder / "plan.json"
        file.write_text(json.dumps(plan))
        worker = REPOSITORY / "tests" / "support" / "rank_worker.py"
        ranks = []
        for rank in range(size):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
            environ = clean_environ(
                **{name: str(value) for name, value in place.items()},
                MASTER_ADDR="127.0.0.1",
                OMP_NUM_THREADS="1",
            )
            with (self.folder / f"said-{size}-{rank}").open("w") as said:
                ranks.append(
                    subprocess.Popen(
                        [sys.executable, worker, file], env=environ, stdout=said, stderr=said
                    )
                )
        statuses = [rank.wait() for rank in ranks]
        if any(statuses):
            texts = [path.read_text() for path in sorted(self.folder.glob(f"said-{size}-*"))]
            pytest.fail("\n".join(texts))

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


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [made.getsockname()[1] for made in sockets]
    for made in sockets:
        made.close()
    return ports


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    made = Runs(tmp_path_factory.mktemp("runs"))
    parity, entry = {**COMMON, "precision": {"mode": "fp32"}}, made.entry
    halves = {**parity, "accumulate": 2}
    first = {size: [entry(f"parity-{size}", parity)] for size in (1, 2, 4)}
    first[1].append(entry("parity-halves", halves))
    second: dict[int, list[Any]] = {}
    for size in (1, 2):
        stopped = f"stopped-{size}"
        first[size] += [
            entry(f"whole-{size}", FP16),
            entry(stopped, FP16, by="SIGTERM", rank=size - 1, step=3),
        ]
        second[size] = [
            entry(stopped, FP16, attempt=2, by="deadline"),
            entry(stopped, FP16, attempt=3, by="file", rank=0, step=6),
            entry(stopped, FP16, attempt=4, by="SIGTERM", rank=0, step=13),
            entry(stopped, FP16, attempt=5),
        ]
    first[2].append(entry("changing", COMMON, by="file", rank=1, step=5))
    second[1].append(entry("changing", COMMON, attempt=2, by="SIGTERM", rank=0, step=14))
    second[2].append(entry("changing", COMMON, attempt=3))
    for plans in (first, second):
        for size, plan in plans.items():
            made.launch(size, plan)
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
    assert [step for step, _ in seen["eval/loss"]] == [8, 16, 24, 30]
    for (_, ours), (_, theirs) in zip(seen["eval/loss"], expected["eval/loss"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)
    assert runs.summary(other)["world_size"] == int(other[-1]) if other[-1].isdigit() else 1


def test_one_rank_alone_reports(runs: Runs) -> None:
    for size in (2, 4):
        run = runs.folder / f"parity-{size}"
        assert len(list((run / "tensorboard").rglob("events.*"))) == 1
        lines = (run / "metrics.jsonl").read_text().splitlines()
        assert len(lines) == STEPS + 4
        for rank in range(1, size):
            said = (runs.folder / f"said-{size}-{rank}").read_text()
            assert "step" not in said


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
    for name in ("weights_sha256", "loss_scale", "skipped_steps", "steps", "accuracy"):
        assert seen[name] == expected[name], name
    assert seen["outcome"] == "finished"
    assert runs.curves(stopped) == runs.curves(whole)
    skipped = dict(runs.curves(whole)["train/skipped_steps"])
    for stop in (3, 4, 6, 13):
        assert 0 < skipped[stop] < skipped[20], "overflows before and after every stop"
    ends = [(3, "TERMINATED"), (4, "DEADLINE"), (6, "ASKED"), (13, "TERMINATED")]
    for attempt, (step, cause) in enumerate(ends, 1):
        outcome, ranks = runs.attempt(stopped, attempt)
        assert (outcome["outcome"], outcome["step"]) == ("checkpointed", step)
        assert outcome["cause"] == cause
        assert [rank["status"] for rank in ranks] == [75] * size, "all ranks agree"
    assert runs.attempt(stopped, 5)[0]["outcome"] == "finished"


def test_two_ranks_really_are_another_sum(runs: Runs) -> None:
    """The control for bit equality: the digest tells runs apart that differ by rounding alone."""
    digests = {runs.summary(f"parity-{size}")["weights_sha256"] for size in (1, 2, 4)}
    assert len(digests) == 3


def test_the_number_of_ranks_may_change(runs: Runs) -> None:
    """2, then 1, then 2 ranks: another order of sums, but the same samples, rates and steps."""
    sizes = [len(runs.attempt("changing", attempt)[1]) for attempt in (1, 2, 3)]
    assert sizes == [2, 1, 2]
    assert [runs.attempt("changing", attempt)[0]["step"] for attempt in (1, 2, 3)] == [5, 14, STEPS]
    seen, expected = runs.curves("changing"), runs.curves("parity-1")
    for name in ("train/loss", "train/lr", "eval/loss"):
        for ours, theirs in zip(seen[name], expected[name], strict=True):
            assert ours == (theirs[0], pytest.approx(theirs[1], abs=1e-5))
    said = (runs.folder / "said-1-0").read_text()
    assert "(saved by 2 ranks)" in said
