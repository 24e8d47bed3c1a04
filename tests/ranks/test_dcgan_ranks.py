"""The DCGAN task on several ranks, and its example script as users start it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import commands
from support.dcgan import GAN, TRAIN
from support.environment import REPOSITORY, clean_environ
from support.rank_trainings import run_on, train_all
from support.training import curve
from support.warm import Warm

pytestmark = pytest.mark.ranks

SCRIPT = REPOSITORY / "examples" / "dcgan" / "main_amp.py"
CURVES = ("train/d_real", "train/d_fake", "train/g")
COMMON: dict[str, Any] = {
    "task": "dcgan",
    **TRAIN,
    # Norms that do not depend on how a batch is divided; `batch` is below.
    "gan": {**GAN, "norm": "group"},
    "epochs": 2,
    "log_every": 1,
    "device": "cpu",
}
# Overflows at once, and again each time that a scale has grown back.
FP16: dict[str, Any] = {
    **COMMON,
    "gan": GAN,
    "precision": {"mode": "fp16", "init_scale": 2.0**22, "growth_interval": 2},
    "accumulate": 2,
    "epochs": 3,
}


def torchrun(python: Path, *command: str | Path) -> str:
    """Start two ranks as a user does, and return what they say; fails where one fails."""
    launcher = [python, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*launcher, "--nproc-per-node=2", *command],
        env=clean_environ(OMP_NUM_THREADS="1"), text=True, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run directories of trainings on one and two ranks, one of which was stopped twice."""
    made = tmp_path_factory.mktemp("dcgan")
    stopped = [(made / "stopped", FP16, stop) for stop in (3, 9, 0)]
    parity = [(made / f"parity-{ranks}", COMMON, 0) for ranks in (1, 2)]
    train_all(warm, made, {1: parity[:1], 2: [parity[1], (made / "whole", FP16, 0), *stopped]})
    return made


def test_two_ranks_train_as_one(folder: Path) -> None:
    """The same images and latent vectors in each step, the same losses, the same distance."""
    one, two = folder / "parity-1", folder / "parity-2"
    for name in CURVES:
        expected, seen = (curve(run, name) for run in (one, two))
        assert len(expected) == 8
        assert [loss for _, loss in seen] == pytest.approx([loss for _, loss in expected], abs=1e-4)
        assert abs(expected[-1][1] - expected[0][1]) > 0.02, "it trains"
    expected, seen = (curve(run, "eval/frechet_random") for run in (one, two))
    assert [step for step, _ in seen] == [4, 8]
    assert [value for _, value in seen] == pytest.approx([v for _, v in expected], rel=1e-2)
    assert len(list((two / "samples").iterdir())) == 2


def test_a_resume_on_two_ranks_is_bit_exact(folder: Path) -> None:
    """fp16, batch norm with two forward passes and more of one network in a step, accumulation."""
    stopped, whole = folder / "stopped", folder / "whole"
    seen, expected = (json.loads((run / "summary.json").read_text()) for run in (stopped, whole))
    for name in ("outcome", "weights_sha256", "loss_scale", "skipped_steps", "steps"):
        assert seen[name] == expected[name], name
    assert (expected["outcome"], expected["world_size"]) == ("finished", 2)
    assert expected["skipped_steps"] > 3
    curves = [f"train/loss_scale_{loss}" for loss in ("d_real", "d_fake", "g")]
    for name in (*CURVES, "eval/frechet_random", "train/loss_scale", *curves):
        assert curve(stopped, name) == curve(whole, name)
        assert curve(whole, name), name
    for attempt, step in ((1, 3), (2, 9)):
        outcome = json.loads((stopped / "attempts" / str(attempt) / "outcome.json").read_text())
        assert (outcome["outcome"], outcome["step"]) == ("checkpointed", step)
    saved = json.loads((stopped / "checkpoints" / "step-00000009" / "trainer.json").read_text())
    scales = {n: s["scale"] for phase in saved["scalers"].values() for n, s in phase.items()}
    assert set(scales) == {"d_real", "d_fake", "g"}


SMALL = ("--imageSize", "16", "--nz", "4", "--ngf", "4", "--ndf", "4", "--device", "cpu")


def test_the_example_runs_one_step_on_request(warm: Warm, tmp_path: Path) -> None:
    said = run_on(warm, 1, SCRIPT, *SMALL, "--dry-run", "--precision", "fp16", cwd=tmp_path)
    assert "finished at step 1 of 1" in said
    assert "D(x) 0." in said
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["precision"], summary["synthetic"], summary["world_size"]) == ("fp16", True, 1)


def test_the_example_runs_on_two_ranks_and_is_resumed_where_it_is_asked_to(
    warm: Warm, warm_python: Path, tmp_path: Path
) -> None:
    flags = (*SMALL, "--batchSize", "1024", "--outf", str(tmp_path))
    said = torchrun(warm_python, SCRIPT, *flags, "--ngpu", "2", "--niter", "1")
    assert said.count("finished at step 4 of 4") == 1, "one rank speaks"
    assert "2 ranks on 1 node" in said
    refused = warm.run(SCRIPT, *flags)
    assert refused.returncode == 2
    assert f"{tmp_path} has checkpoints: add --resume" in refused.stderr.splitlines()[-1]
    said = run_on(warm, 1, SCRIPT, *flags, "--niter", "2", "--resume")
    assert "at step 4 (saved by 2 ranks)" in said
    assert "finished at step 8 of 8" in said
    assert [step for step, _ in curve(tmp_path, "eval/frechet_random")] == [4, 8]
    names = [path.name for path in sorted((tmp_path / "samples").iterdir())]
    assert names == ["step-00000004.png", "step-00000008.png"]


def test_the_example_is_a_job_too(warm_python: Path, tmp_path: Path) -> None:
    """As shipped, but small, on two ranks of the local scheduler."""
    words = ["python", "-u", "main_amp.py", *SMALL, "--batchSize", "1024", "--niter", "1"]
    settings = ["site=local", "job.gpus_per_node=0", "job.ranks_per_node=2", "job.cpus_per_gpu=1"]
    settings += [
        f"container.python={warm_python}",
        f"runs_dir={tmp_path / 'runs'}",
        f"run={json.dumps([*words, '--outf', 'out'])}",
    ]
    environ = clean_environ(OMP_NUM_THREADS="1", PYTHONPATH=str(REPOSITORY))
    words = ["run", "examples/dcgan/job.yaml", *settings]
    done = commands.hpc_amp(*words, cwd=REPOSITORY, environ=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "finished at step 4 of 4" in done.stdout
    (pictures,) = (tmp_path / "runs").rglob("samples")
    assert [path.name for path in pictures.iterdir()] == ["step-00000004.png"]
