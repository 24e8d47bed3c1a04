"""What an image is, told from its bytes; what is in it, told by a stand-in of it."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.container import FakeRuntime, fake_runtime, sif

from hpc_amp.cli.app import app
from hpc_amp.cli.container import container
from hpc_amp.containers import inspect as inspection
from hpc_amp.containers import ngc
from hpc_amp.containers.apptainer.image import read_image
from hpc_amp.containers.image import machine
from hpc_amp.errors import ConfigError, HpcAmpError, UsageError

OTHER = ("04", "arm64") if machine() == "amd64" else ("02", "amd64")
OWN = "02" if machine() == "amd64" else "04"


@pytest.mark.parametrize(
    ("code", "name"), [("02", "amd64"), ("04", "arm64"), ("06", "ppc64le"), ("99", None)]
)
def test_a_sif_file_says_its_architecture_and_labels(
    tmp_path: Path, code: str, name: str | None
) -> None:
    path = tmp_path / "x.sif"
    path.write_bytes(sif(code, {"org.hpc-amp.base": "debian:trixie"}))
    image = read_image(str(path))
    assert (image.kind, image.architecture) == ("sif", name)
    assert image.labels == {"org.hpc-amp.base": "debian:trixie"}
    assert image.size == path.stat().st_size


BROKEN = {
    b"": "it is empty",
    b"<!DOCTYPE html><html>403": "it is a web page",
    gzip.compress(b"x"): "it is an archive; if Docker saved it: hpc-amp container pull docker-arch",
    b"Bootstrap: docker\nFrom: x\n": "if it is a definition: hpc-amp container build",
    b"\x7fELF": "neither a SIF file nor a sandbox folder",
    sif()[:50]: "it is the beginning of one",
    sif(missing=1): "is cut off: ",
}


@pytest.mark.parametrize("content", BROKEN, ids=lambda content: BROKEN[content][:20])
def test_what_is_no_image_is_told_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.sif"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_image(str(path))
    assert str(path) in str(caught.value)
    assert BROKEN[content] in str(caught.value)


def test_missing_unreadable_and_uri(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"there is no image {tmp_path}/x.sif"):
        read_image(str(tmp_path / "x.sif"))
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"file/x\.sif cannot be read: Not a directory"):
        read_image(str(tmp_path / "file" / "x.sif"))
    with pytest.raises(UsageError, match=r"is a URI.*hpc-amp container pull docker://a/b:c"):
        read_image("docker://a/b:c")


def test_a_job_with_a_broken_image_is_not_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("name: x\nrun: [true]\ncontainer: x.sif\nsite: slurm\n")
    (tmp_path / "x.sif").write_bytes(sif(missing=7))
    result = CliRunner().invoke(app, ["validate", "job.yaml"])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception).startswith(
        f"job.yaml:3: container.image: the image {tmp_path}/x.sif is cut off: "
    )
    (tmp_path / "x.sif").write_bytes(sif())
    assert CliRunner().invoke(app, ["validate", "job.yaml"]).exit_code == 0


def test_an_image_of_singularity_2(tmp_path: Path) -> None:
    (tmp_path / "x.simg").write_bytes(b"#!/usr/bin/env run-singularity\nhsqs" + bytes(100))
    image = read_image(str(tmp_path / "x.simg"))
    assert (image.kind, image.architecture) == ("singularity-2", None)


def test_a_sandbox_is_known_by_its_shell(tmp_path: Path) -> None:
    """Through links, which lead somewhere else inside than here."""
    for folder in ("usr/bin", ".singularity.d", "etc/alternatives"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "usr/bin/sh").symlink_to("/etc/alternatives/sh")
    (tmp_path / "etc/alternatives/sh").symlink_to("/usr/bin/../bin/dash")
    with pytest.raises(UsageError, match="it has no /bin/sh"):
        read_image(str(tmp_path))
    elf = bytearray(b"\x7fELF\x02\x01" + bytes(14))
    elf[18] = 183
    (tmp_path / "usr/bin/dash").write_bytes(elf)
    (tmp_path / ".singularity.d/labels.json").write_text('{"a": "b"}')
    image = read_image(str(tmp_path))
    assert (image.kind, image.architecture, image.labels) == ("sandbox", "arm64", {"a": "b"})
    (tmp_path / "bin").unlink()
    (tmp_path / "bin").symlink_to("bin")  # a loop
    with pytest.raises(UsageError):
        read_image(str(tmp_path))


# ---- inside --------------------------------------------------------------------------------------

TORCH = """
__version__ = "2.8.0a0+5228986c39.nv25.06"
import sys, types
version = types.SimpleNamespace(cuda="12.9", hip=None)
backends = types.SimpleNamespace(cudnn=types.SimpleNamespace(version=lambda: 91002))
cuda = types.ModuleType("torch.cuda")
cuda.nccl = types.SimpleNamespace(version=lambda: (2, 27, 3))
cuda.get_arch_list = lambda: ["sm_80", "sm_90"]
distributed = sys.modules["torch.distributed"] = types.ModuleType("torch.distributed")
distributed.is_available = distributed.is_gloo_available = lambda: True
"""
NGC_ENVIRONMENT = {
    "NVIDIA_PYTORCH_VERSION": "25.06",
    "PYTORCH_VERSION": "2.8.0a0+5228986c39",
    "CUDA_VERSION": "12.9.1.010",
    "CUDA_DRIVER_VERSION": "575.57.08",
    "OPENMPI_VERSION": "4.1.7",
    "NCCL_VERSION": "2.27.3",
    "OPAL_PREFIX": "/opt/hpcx/ompi",
    "BASH_ENV": "/etc/bash.bashrc",
    "PIP_CONSTRAINT": "/etc/pip/constraint.txt",
    "LD_LIBRARY_PATH": "/usr/local/cuda/compat/lib:/.singularity.d/libs",
    "NCCL_NET_PLUGIN": "none",
    "TORCH_CUDA_ARCH_LIST": "7.5 8.0",
    "CUDA_MODULE_LOADING": "LAZY",
    "PYTHONNOUSERSITE": "1",
}
# The stand-in runs the probe with this Python, in the image's environment.
RUNS = """
import subprocess
position = sys.argv.index("python3")
sys.exit(subprocess.run([sys.executable, *sys.argv[position + 1:]], env={environ!r}).returncode)
"""


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    fake = fake_runtime(tmp_path / "runtime")
    monkeypatch.setenv("PATH", f"{fake.bin}:/usr/bin:/bin")
    monkeypatch.setattr(inspection, "driver_here", lambda: None)
    return fake


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "x.sif"
    path.write_bytes(sif(OWN))
    return path


def packages(folder: Path, **modules: str) -> dict[str, str]:
    """An environment in which only these packages are found, beside the standard library."""
    folder.mkdir()
    for name in ("torch", "torchvision", "tensorboard", "mpi4py"):
        absent = f"raise ModuleNotFoundError({name!r}, name={name!r})"
        (folder / f"{name}.py").write_text(modules.get(name, absent))
    return {"PYTHONPATH": str(folder)}


def looked_at(image: Path) -> dict[str, Any]:
    result = CliRunner().invoke(
        container, ["inspect", str(image), "--json"], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_an_ngc_image_is_described(
    runtime: FakeRuntime, image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = packages(
        tmp_path / "site", torch=TORCH, torchvision="__version__ = '0.22'", tensorboard="x = 1"
    )
    runtime.does(RUNS.format(environ={**NGC_ENVIRONMENT, **found}))
    monkeypatch.setattr(inspection, "driver_here", lambda: "535.104.05")
    facts = looked_at(image)
    argv = runtime.call["argv"]
    assert argv[:2] == ["exec", "--cleanenv"]
    assert argv[-4:] == ["python3", "-B", "-s", "-"]
    assert "--no-eval" in argv
    assert {
        "torch": "2.8.0a0+5228986c39.nv25.06",
        "torchvision": "0.22",
        "tensorboard": "unknown",
        "mpi4py": None,
        "openmpi": "4.1.7",
        "cuda": "12.9.1.010",
        "cudnn": "91002",
        "nccl": "2.27.3",
        "cuda_architectures": ["sm_80", "sm_90"],
        "ngc_release": "25.06",
        "driver_native": "575.57.08",
        "driver_floor": "525",
        "driver_here": "535.104.05",
        "driver_support": "minor-version",
        "usable": True,
    }.items() <= facts.items()
    masks = {"CUDA_MODULE_LOADING", "NCCL_NET_PLUGIN", "OPAL_PREFIX", "PYTHONPATH"}
    assert set(facts["masks"]) == masks
    assert set(facts["traps"]) == {"BASH_ENV", "PIP_CONSTRAINT", "LD_LIBRARY_PATH"}
    assert [(lack["what"], lack["needed"]) for lack in facts["lacks"]] == [("mpi4py", False)]
    shown = CliRunner().invoke(container, ["inspect", str(image)]).stdout
    assert "NGC 25.06" in shown
    assert "made for 575.57.08, works with 525 or newer" in shown
    assert "535.104.05: it runs by minor-version compatibility" in shown
    assert shown.endswith("hpc-amp can train in it\n")


def test_what_is_lacking_is_told(runtime: FakeRuntime, image: Path, tmp_path: Path) -> None:
    def lacks(name: str, **modules: str) -> dict[str, tuple[str, bool]]:
        runtime.does(RUNS.format(environ=packages(tmp_path / name, **modules)))
        facts = looked_at(image)
        assert facts["usable"] is (not any(lack["needed"] for lack in facts["lacks"]))
        return {lack["what"]: (lack["why"], lack["needed"]) for lack in facts["lacks"]}

    assert lacks("a")["torch"] == ("it has none", True)
    old = lacks("b", torch=TORCH.replace("2.8.0a0", "2.0.1"), torchvision="")
    assert old["torch 2.1"] == ("it has 2.0.1+5228986c39.nv25.06", True)
    broken = lacks("c", torch=TORCH, torchvision="raise RuntimeError('no operator nms')")
    assert broken["torchvision"] == (
        "it does not import: RuntimeError: no operator nms",
        True,
    )
    library = lacks("d", torch="raise ImportError('libcudnn.so.9: cannot open')")
    assert library["torch"] == ("it does not import: libcudnn.so.9: cannot open", True)
    cpu = lacks("e", torch=TORCH.replace('cuda="12.9"', "cuda=None"), torchvision="")
    assert cpu["CUDA"] == ("its torch computes on CPUs only", False)


def test_an_image_without_python(runtime: FakeRuntime, image: Path) -> None:
    runtime.fails('FATAL:   "python3": executable file not found in $PATH\n')
    facts = looked_at(image)
    assert facts["lacks"] == [
        {"what": "python3", "why": "there is no Python in it", "needed": True}
    ]
    assert facts["usable"] is False


def test_an_image_in_which_nothing_runs(runtime: FakeRuntime, image: Path) -> None:
    runtime.fails("FATAL:   container creation failed: mount error\n")
    result = CliRunner().invoke(container, ["inspect", str(image)])
    assert isinstance(result.exception, HpcAmpError)
    assert "no program runs in it (status 255): container creation failed" in str(result.exception)


def test_an_image_of_another_architecture_is_not_executed(
    runtime: FakeRuntime, tmp_path: Path
) -> None:
    path = tmp_path / "other.sif"
    path.write_bytes(sif(OTHER[0], {"org.hpc-amp.base": "nvcr.io/nvidia/pytorch:25.06-py3"}))
    facts = looked_at(path)
    assert runtime.calls == []
    assert (facts["looked_inside"], facts["architecture"]) == (False, OTHER[1])
    assert f"it is for {OTHER[1]} nodes" in facts["lacks"][0]["why"]
    assert (
        "nvcr.io/nvidia/pytorch:25.06-py3"
        in CliRunner().invoke(container, ["inspect", str(path)]).stdout
    )


def test_the_probe_runs_with_old_python() -> None:
    """As far as its grammar goes: images with Python 3.8 are found too old, and not broken."""
    import ast

    from hpc_amp.resources import resource_folder

    ast.parse((resource_folder("containers") / "probe.py").read_text(), feature_version=(3, 6))


@pytest.mark.parametrize(
    ("smi", "driver"),
    [("535.104.05\n535.104.05\n", "535.104.05"), ("NVIDIA-SMI has failed", None), (None, None)],
)
def test_the_driver_of_this_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smi: str | None, driver: str | None
) -> None:
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has a driver")
    monkeypatch.setenv("PATH", str(tmp_path))
    if smi is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\nprintf '{smi}'\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    assert inspection.driver_here() == driver


# ---- the table -----------------------------------------------------------------------------------


def test_the_table_is_sound() -> None:
    table = ngc.table()
    names = [row.release for row in table.releases]
    assert names == sorted(set(names))
    assert len(names) >= 40
    assert table.sources
    for row in table.releases:
        assert ngc.version(row.torch)
        assert row.floor == table.floor(row.cuda)
        assert row.source in (
            *("release notes", "sister notes", "triton matrix", "jetson table", "image"),
        )
        assert {*row.unverified} <= {"torch", "cuda", "driver", "openmpi", "python"}
        for text in filter(None, [row.driver, row.floor, *(row.compat or [])]):
            assert ngc.check_driver(text) == text
        if row.driver:
            assert ngc.as_new_as(row.driver, row.floor) or row.floor == "450.80.02"


@pytest.mark.parametrize(
    ("driver", "made_for", "floor", "compat", "expected"),
    [
        ("580.95.05", "580.95.05", "580", None, "native"),
        ("590", "580.95.05", "580", None, "native"),
        ("580", "580.95.05", "580", None, "native"),
        ("580.65.06", "580.95.05", "580", None, "minor-version"),
        ("535.104.05", "575.57.08", "525", None, "minor-version"),
        ("525", "575.57.08", "525", None, "minor-version"),
        ("520.61", "575.57.08", "525", None, "unknown"),
        ("535.86.10", "580", "580", ["470", "535"], "forward"),
        ("530.30", "580", "580", ["470", "535"], "too-old"),
        ("450.36", "510", "450.80.02", ["450.51"], "too-old"),
        ("450.51.06", "510", "450.80.02", ["450.51"], "forward"),
        ("450.80.02", "510", "450.80.02", ["450.51"], "minor-version"),
        ("600", None, "580", None, "minor-version"),
    ],
)
def test_how_a_driver_runs_an_image(
    driver: str, made_for: str | None, floor: str, compat: list[str] | None, expected: str
) -> None:
    assert ngc.support(driver, made_for, floor, compat) == expected


def test_nvidias_versions_are_compared_as_numbers() -> None:
    assert ngc.version("2.8.0a0+5228986c39.nv25.06") == (2, 8, 0)
    assert ngc.version("1.14.0a0+44dac51") < ngc.version("2.0.0")
    assert ngc.version("none") == ()


def releases(*options: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(container, ["list", "--json", *options], catch_exceptions=False)
    facts = json.loads(result.stdout)
    assert set(facts) == {"date", "driver", "recommended", "sources", "releases"}
    return facts["releases"]


def test_the_list_is_filtered() -> None:
    assert len(releases()) == len(ngc.table().releases)
    assert {row["release"] for row in releases("--torch", "2.6")} == {"24.11", "24.12", "25.01"}
    (row,) = [row for row in releases("--driver", "535.104.05") if row["release"] == "25.08"]
    assert row["support"] == "forward"
    assert row["image"] == "nvcr.io/nvidia/pytorch:25.08-py3"
    shown = CliRunner().invoke(container, ["list", "--driver", "535"]).stdout
    lines = {line.split()[0]: line.split() for line in shown.splitlines() if line}
    assert lines["25.06"][1:6] == [
        "2.8.0a0+5228986c39",
        "12.9.1",
        "575.57.08",
        "525",
        "minor-version",
    ]
    assert lines["22.01"][1:4] == ["1.11.0a0+bfe5ad2*", "11.6.0?", "510?"]
    assert f"As of {ngc.table().date}" in shown


def test_the_newest_image_that_works_is_first_and_recommended() -> None:
    names = [row["release"] for row in releases()]
    assert names == sorted(names, reverse=True)

    rows = releases("--driver", "535.104.05")
    works = [row["trains"] and row["support"] not in ("too-old", "unknown") for row in rows]
    assert works == sorted(works, reverse=True)
    usable = [row["release"] for row in rows[: works.index(False)]]
    assert usable == sorted(usable, reverse=True)

    shown = CliRunner().invoke(container, ["list", "--driver", "535.104.05"]).stdout
    native = next(row for row in rows if row["trains"] and row["support"] == "native")
    assert f"docker://{native['image']}\n" in shown
    assert "recommended (for driver 535.104.05)" in shown
    old = CliRunner().invoke(container, ["list", "--driver", "390"]).stdout
    assert "no image in this table is known to work with driver 390 and to train" in old


@pytest.mark.parametrize("options", [["--driver", "new"], ["--torch", "two"], ["--driver", "12.4"]])
def test_filters_that_say_nothing_are_refused(options: list[str]) -> None:
    result = CliRunner().invoke(container, ["list", *options])
    assert isinstance(result.exception, UsageError)


def test_help_is_quick_to_import() -> None:
    """Neither YAML nor Jinja, nor anything of the commands, before a command runs."""
    code = "import sys, hpc_amp.cli.app as a; print(*[m for m in sys.modules if 'yaml' in m or "
    code += "'jinja2' in m or m.startswith('hpc_amp.containers')])"
    shown = subprocess.run(
        [sys.executable, "-c", code], text=True, capture_output=True, check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert shown.stdout.split() == []
