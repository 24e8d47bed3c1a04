"""`benchmarks/gan_quality.py`: its statistics, and a comparison that is interrupted."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import pytest
from PIL import Image
from support import commands
from support.campaigns import find_sweep
from support.environment import REPOSITORY, clean_environ
from support.waiting import wait_until

from hpc_amp.sweep.view import SWEEP

SCRIPT = REPOSITORY / "benchmarks" / "gan_quality.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The benchmark as a module."""
    spec = importlib.util.spec_from_file_location("gan_quality", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gan_quality"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def seeds(*values: float) -> dict[int, float]:
    return dict(enumerate(values))


def test_formats_that_differ_less_than_seeds_are_not_told_apart(script: ModuleType) -> None:
    found = script.difference(seeds(2.0, 4.0, 9.0), seeds(1.0, 6.0, 5.0))
    # Means 5 and 4, variances 13 and 7; differences 1, -2 and 4 with variance 9.
    assert found.seeds == 3 and found.mean == pytest.approx(1.0)
    assert found.t_between_seeds == pytest.approx(1 / (20 / 3) ** 0.5)
    assert found.t_of_pairs == pytest.approx(1 / (9 / 3) ** 0.5)
    assert found.bounds == (2.776, 4.303)
    assert not found.significant


def test_a_format_differs_where_either_test_says_so(script: ModuleType) -> None:
    shifted = script.difference(seeds(1.1, 5.1, 9.11), seeds(1.0, 5.0, 9.0))
    assert abs(shifted.t_between_seeds) < 0.1 and shifted.t_of_pairs > 4.303
    assert shifted.significant
    apart = script.difference(seeds(4.0, 7.0, 5.0), seeds(1.0, 2.0, 3.0))
    assert abs(apart.t_of_pairs) < 4.303 and apart.t_between_seeds > 2.776
    assert apart.significant


def test_runs_without_spread_and_runs_that_are_missing(script: ModuleType) -> None:
    equal = script.difference(seeds(1.0, 2.0), seeds(1.0, 2.0))
    assert (equal.mean, equal.t_of_pairs, equal.significant) == (0.0, 0.0, False)
    constant = script.difference(seeds(2.0, 3.0), seeds(1.0, 2.0))
    assert constant.t_of_pairs == float("inf") and constant.significant
    assert script.difference({0: 1.0, 1: 2.0}, {1: 1.0, 2: 2.0}) is None
    partly = script.difference({0: 1.0, 1: 2.0, 2: 4.0}, {1: 1.0, 2: 2.0, 3: 5.0})
    assert partly.seeds == 2 and partly.mean == pytest.approx(1.5)


# -- a comparison ---------------------------------------------------------------------------------

JOB = """\
name: tiny
site: local
job: {nodes: 1, gpus_per_node: 0, walltime: "00:20:00"}
train:
  task: spade
  images: {name: synthetic, image_size: [16], labels: 4, synthetic: {train: 16, test: 8}}
  spade:
    width: 4
    stages: 2
    hidden: 4
    norm: instance
    discriminator: {width: 4, layers: 1, scales: 2}
  evaluation: {pictures: 2}
  epochs: 2
  batch_size: 8
  schedule: {name: constant, warmup: 0}
  precision: {mode: fp32, init_scale: 4194304}
  log_every: 1
  device: cpu
"""


def test_a_comparison_goes_on_where_it_was_interrupted(tmp_path: Path, warm_python: Path) -> None:
    """Finished runs are kept, and another metric needs no new runs."""
    (tmp_path / "job.yaml").write_text(JOB)
    words = [str(SCRIPT), "job.yaml", "train.ema=0.5", f"container.python={warm_python}"]
    words += ["--seeds", "2", "--modes", "fp32", "fp16"]
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=tmp_path,
        env=clean_environ(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # with the sweep that it starts
    )
    assert process.stdout is not None
    _read_until(process.stdout, "[1/4]")
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=600)
    assert process.returncode != 0, said
    finished = _finished(tmp_path)
    assert 1 <= len(finished) < 4

    files = ["--json", "out.json", "--picture", "out.png"]

    def goes_on() -> subprocess.CompletedProcess[str] | None:
        """None while the job that was interrupted has not ended."""
        done = commands.python(*words, *files, cwd=tmp_path, environ=clean_environ())
        return None if "has not ended the job" in done.stdout + done.stderr else done

    wait_until(lambda: _have_ended(tmp_path), "the end of the attempts")
    again = wait_until(goes_on, "the end of the interrupted job")
    assert again.returncode == 0, again.stdout + again.stderr
    runs = _finished(tmp_path)
    assert len(runs) == 4 and {name: runs[name] for name in finished} == finished, "not run again"
    facts = json.loads((tmp_path / "out.json").read_text())
    assert facts["metric"] == "frechet_random"
    by_run = {(run["mode"], run["seed"]): run for run in facts["runs"]}
    assert list(by_run) == [("fp32", 0), ("fp16", 0), ("fp32", 1), ("fp16", 1)]
    for (mode, _), run in by_run.items():
        assert run["value"] == run["metrics"]["frechet_random"]
        assert set(run["loss_scales"]) == (SCALED if mode == "fp16" else set())
    scales = by_run["fp16", 0]["loss_scales"]
    assert any(s["overflows"] > 0 and s["scale"] < 4194304 for s in scales.values())
    assert facts["differences"]["fp16"]["mean"] == pytest.approx(
        sum(by_run["fp16", s]["value"] - by_run["fp32", s]["value"] for s in (0, 1)) / 2
    )
    with Image.open(tmp_path / "out.png") as picture, Image.open(_picture(tmp_path)) as one:
        times = 1000 // one.width
        assert times > 1 and picture.size == (times * one.width, 2 * (times * one.height + 14))

    other = commands.python(*words, "--metric", "l1", cwd=tmp_path, environ=clean_environ())
    assert other.returncode == 0 and "\nl1\n" in other.stdout
    assert _finished(tmp_path) == runs


SCALED = {"d", "gan+features+perceptual"}


def _read_until(lines: IO[str], word: str) -> None:
    said = []
    for line in lines:
        said.append(line)
        if word in line:
            return
    raise AssertionError("".join(said))


def _finished(folder: Path) -> dict[int, Any]:
    """What the finished runs of the only sweep have written, by their number."""
    sweep = find_sweep("tiny", folder / "sweeps")
    assert len(list((folder / "sweeps" / "tiny").glob("[0-9]*"))) == 1
    return {
        status.index: (sweep.point_dir(status.index) / "summary.json").read_text()
        for status in SWEEP.statuses(sweep)
        if status.state == "finished"
    }


def _have_ended(folder: Path) -> bool:
    """Whether no attempt of a run is at work."""
    attempts = (folder / "sweeps").glob("tiny/2*/points/*/attempts/[0-9]*")
    return all((attempt / "ended").exists() for attempt in attempts)


def _picture(folder: Path) -> Path:
    run = find_sweep("tiny", folder / "sweeps").point_dir(0)
    return sorted((run / "samples").iterdir())[-1]


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)

    def run(*words: str) -> str:
        done = commands.python(str(SCRIPT), *words, cwd=tmp_path, environ=clean_environ())
        assert done.returncode == 2, done.stderr
        return done.stderr.splitlines()[-1]

    assert "nothing.yaml cannot be read: No such file" in run("nothing.yaml")
    assert "at least two seeds and two formats" in run("job.yaml", "--seeds", "1")
    assert "only the seed and the format" in run("job.yaml", "train.batch_size=4,8")
    assert "is not one of fp32" in run("job.yaml", "--modes", "fp32", "fp8")
