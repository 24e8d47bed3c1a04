"""The wheel: what `pip install hpc-amp` gives on a login node."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest
from support.environment import REPOSITORY, clean_environ
from support.warm import Warm

from hpc_amp.config.load import load_job
from hpc_amp.config.sites import find_site
from hpc_amp.jobs.code import copy_package
from hpc_amp.jobs.plan import make_plan


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel and its dependencies alone; returns its bin folder."""
    folder = tmp_path_factory.mktemp("install")
    venv.create(folder / "env", with_pip=False, symlinks=True)
    python = folder / "env" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    install = [*pip, "--python", python, "install", "--no-compile", REPOSITORY]  # makes a wheel
    subprocess.run(install, check=True, timeout=300)
    return python.parent


def run(bin_folder: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = clean_environ(PATH=f"{bin_folder}:/usr/bin:/bin")
    del environ["PYTHONPATH"]
    return subprocess.run(
        [bin_folder / "hpc-amp", *arguments],
        cwd=folder,
        env=environ,
        text=True,
        capture_output=True,
    )


def test_the_submit_side_works_alone(installed: Path, tmp_path: Path) -> None:
    assert run(installed, tmp_path, "--version").stdout.startswith("hpc-amp ")
    assert run(installed, tmp_path, "init").returncode == 0
    valid = run(installed, tmp_path, "validate", "job.yaml", "site=slurm")
    assert valid.returncode == 0, valid.stderr
    script = run(installed, tmp_path, "render", "job.yaml", "site=slurm")
    assert script.stdout.startswith("#!/bin/bash -l\n#SBATCH --job-name=my_first_job\n")


def test_it_is_small(installed: Path) -> None:
    packages = installed.parent / "lib"
    names = {path.name for path in next(packages.iterdir()).joinpath("site-packages").iterdir()}
    third_party = {n for n in names if not n.endswith((".dist-info", ".pth")) and n[0] != "_"}
    assert third_party == {"hpc_amp", "click", "jinja2", "markupsafe", "yaml"}


def test_a_run_without_torch_says_what_is_missing(installed: Path, tmp_path: Path) -> None:
    run(installed, tmp_path, "init")
    ended = run(installed, tmp_path, "run", "job.yaml", "job.gpus_per_node=0")
    assert ended.returncode == 1
    said = [line for line in ended.stdout.splitlines() if line.startswith("hpc-amp: ")]
    assert len(said) == 2, said
    assert said[0].startswith("hpc-amp: preflight: img.python: ") and "has no torch on" in said[0]
    assert "use an image with torch" in said[0]
    assert said[1].endswith("no rank was started (launch.preflight=false leaves this check out)")
    assert "Traceback" not in ended.stdout + ended.stderr


def test_the_snapshot_of_an_installed_package_runs(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        "name: hello\njob: {gpus_per_node: 0}\nrun: [python, -c, 'print(\"hello from the job\")']\n"
    )
    ended = run(installed, tmp_path, "run", "job.yaml")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "hello from the job\n" in ended.stdout


def test_definitions_of_images_are_in_it(installed: Path, tmp_path: Path) -> None:
    for kind in ("ngc", "debian"):
        written = run(installed, tmp_path, "container", "def", kind)
        assert written.stdout.startswith("Bootstrap: docker\n"), written.stderr
    listed = run(installed, tmp_path, "container", "list")
    assert "25.06" in listed.stdout
    assert list(installed.parent.rglob("_share/containers/probe.py"))


def test_a_run_has_the_job_side_alone_and_all_of_it(tmp_path: Path, warm: Warm) -> None:
    """Every module that a rank can import, and none that it cannot."""
    (tmp_path / "job.yaml").write_text("name: x\nrun: [true]\n")
    job = load_job(tmp_path / "job.yaml")
    copy_package(tmp_path, make_plan(job, find_site("slurm"), tmp_path))
    package = tmp_path / "src" / "hpc_amp"
    names = sorted(
        str(path.relative_to(package.parent).with_suffix("")).replace("/", ".")
        for path in package.rglob("*.py")
        if path.name != "__init__.py"
    )
    script = (
        "import importlib, sys\n"
        f"for name in {names!r}:\n    importlib.import_module(name)\n"
        "strangers = {name.split('.')[1] for name in sys.modules if name.startswith('hpc_amp.')}\n"
        "print(*sorted(strangers))"
    )

    src = tmp_path / "src"
    result = warm.run("-c", script, cwd=src, environ={"PYTHONPATH": str(src)})

    assert result.returncode == 0, result.stderr
    shared = "config errors files finding registry"
    own = "amp data distributed gan models preflight tasks trackers train"
    assert result.stdout.split() == sorted(f"{shared} {own}".split())
    assert len(names) > 80
    assert not (package / "cli").exists()
