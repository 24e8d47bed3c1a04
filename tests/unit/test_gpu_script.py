"""`benchmarks/gpu.sh` on this machine: its small form, and the jobs of both forms, not started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.environment import REPOSITORY, clean_environ
from support.warm_python import WarmPython

SCRIPT = REPOSITORY / "benchmarks" / "gpu.sh"


def gpu(
    out: Path, *words: str, python: str | Path = sys.executable, **environ: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPT, "--out", out, *words],
        env=clean_environ(PYTHON=str(python), OMP_NUM_THREADS="1", **environ),
        text=True, capture_output=True, timeout=900,
    )  # fmt: skip


def program(path: Path, lines: str) -> Path:
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
    return path


def test_the_small_form_measures(warm_pythons: WarmPython, tmp_path: Path) -> None:
    measured = ("*/overhead.py*", "*/checkpoint.py*")
    python = warm_pythons.interpreter(tmp_path / "env", *measured)
    out = tmp_path / "out"
    done = gpu(out, "--small", "overhead", "checkpoint", "dcgan", python=python)
    logs = {path.stem: path.read_text() for path in out.iterdir()}
    assert done.returncode == 0, done.stdout + done.stderr + "".join(logs.values())
    assert "The losses of all contestants were equal to a millionth." in logs["overhead"]
    assert "times shorter than torch.save's" in logs["checkpoint"]
    assert "fp32        1/1" in logs["dcgan"]


@pytest.mark.parametrize("form", [[], ["--small"]])
def test_the_settings_of_each_job_are_valid(form: list[str], tmp_path: Path) -> None:
    """Each is prepared, and not started."""
    dry = program(tmp_path / "python", f'exec "{sys.executable}" "$@" --dry-run')
    parts = ["resnet50", "compile", "dcgan", "spade", "cifar"]
    done = gpu(tmp_path / "out", *form, *parts, python=dry, CIFAR10=str(tmp_path))
    logs = "".join(path.read_text() for path in (tmp_path / "out").iterdir())
    assert done.returncode == 0, done.stdout + done.stderr + logs
    assert done.stdout.count("exit status 0") == len(parts)


def test_a_part_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    failing = program(tmp_path / "python", "echo no GPU; exit 3")
    done = gpu(tmp_path / "out", "overhead", "cifar", "checkpoint", python=failing, CIFAR10="")
    said = done.stdout.splitlines()
    assert done.returncode == 1
    assert [line.partition(" after")[0] for line in said] == [
        "overhead: exit status 3",
        "cifar: skipped, since CIFAR10 names no folder",
        "checkpoint: exit status 3",
    ]
    assert "no GPU" in (tmp_path / "out" / "overhead.log").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [(["resnet"], "no part resnet; there are"), (["--smal"], "unknown option --smal")],
)
def test_what_it_does_not_know_is_refused(words: list[str], says: str, tmp_path: Path) -> None:
    done = gpu(tmp_path, *words)
    assert done.returncode == 2
    assert says in done.stderr
