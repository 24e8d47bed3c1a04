"""The preflight of a node: every check in a situation that makes it speak, and how the nodes come
together. Real nodes: tests/cluster/test_doctor.py."""

from __future__ import annotations

import errno
import json
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.environment import REPOSITORY, clean_environ
from support.ports import free_ports
from support.stubs import StubHost, events

from hpc_amp.config.schema import Data, Job, Resources, Train, to_plain
from hpc_amp.doctor.catalogue import CATALOGUE
from hpc_amp.finding import Finding, Findings
from hpc_amp.jobs.code import MAIN
from hpc_amp.jobs.events import read_events
from hpc_amp.preflight import gpu_checks, meeting, network_checks, node_checks
from hpc_amp.preflight.meeting import Meeting, snapshot
from hpc_amp.preflight.node import Node
from hpc_amp.tasks.classification.config import ClassificationConfig

SCRIPT = REPOSITORY / "hpc_amp" / "host" / "preflight.sh"
Check = Callable[[Node], Findings]


class Place:
    """A node whose files are in a folder."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.run_dir = folder / "run"
        for name in ("tmp", "dev/shm", "work", "proc/sys/net/ipv4", "sys/class"):
            (self.root / name).mkdir(parents=True)
        for name in ("src", "attempts/1"):
            (self.run_dir / name).mkdir(parents=True)
        self.resources: dict[str, Any] = {"nodes": 2, "gpus_per_node": 0, "ranks_per_node": 2}
        self.more: dict[str, Any] = {}
        self.env: dict[str, str] = {}
        self.environ = {
            "HPC_AMP_WORLD_SIZE": "4",
            "HPC_AMP_MASTER_ADDR": "127.0.0.1",
            "HPC_AMP_MASTER_PORT": "61234",
            "SLURM_PROCID": "0",
            "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_LOCALID": "0",
        }
        self.outside: dict[str, str] = {}
        self.binds: list[str] = []

    def write(self, path: str, text: str = "") -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def node(self) -> Node:
        more = self.more or {"run": ["true"]}
        job = to_plain(Job(name="test", resources=Resources(**self.resources), **more))
        job["container"]["env"] = self.env
        return Node(
            resolved={
                "job": job, "workdir": "/work", "launcher": "torchrun", "binds": self.binds,
            },
            run_dir=self.run_dir,
            environ=self.environ,
            outside=self.outside,
            root=self.root,
        )  # fmt: skip

    def found(self, check: Check) -> dict[str, Finding]:
        return {finding.id: finding for finding in check(self.node())}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def full(path: Path, *_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def short_of(space: int) -> Callable[[Any], os.statvfs_result]:
    def statvfs(path: Any) -> os.statvfs_result:
        found = list(os.statvfs_result(range(11)))
        found[0:5] = [1, 1, 10**9, space, space]
        found[5:8] = [10**6, 10**6, 10**6]
        return os.statvfs_result(found)

    return statvfs


# ---- place and folders ---------------------------------------------------------------------------


def test_a_node_in_order(place: Place) -> None:
    for check in node_checks.CHECKS.values():
        for finding in check(place.node()):
            # The range of ports is not in the folder; this machine may be full or bound.
            if finding.id not in ("net.port", "net.name", "tmp", "shm", "fs", "cpu.affinity"):
                assert finding.severity == "good", finding


@pytest.mark.parametrize(
    "environ",
    [
        {"HPC_AMP_WORLD_SIZE": ""},
        {"SLURM_STEP_NUM_TASKS": "3"},
        {"SLURM_PROCID": "many"},
    ],
)
def test_rank(place: Place, environ: dict[str, str]) -> None:
    assert place.found(node_checks.check_rank)["rank"].severity == "good"
    place.environ |= environ
    assert place.found(node_checks.check_rank)["rank"].severity == "error"


def test_fs(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", short_of(2**29))
    (found,) = node_checks.check_run_dir(place.node())
    assert (found.id, found.severity) == (
        "fs",
        "warning",
    ) and "only about 500 MiB of free" in found.what

    monkeypatch.setattr(node_checks, "_write", full)
    (found,) = node_checks.check_run_dir(place.node())
    assert found.severity == "error" and found.what.endswith("No space left on device")


def test_bind(place: Place) -> None:
    place.write("data/file")
    place.binds = ["/somewhere:/data", "/data/file"]
    assert place.found(node_checks.check_binds)["bind"].severity == "good"

    place.binds = ["/somewhere:/data", "/data/other:/data/none:ro"]
    found = place.found(node_checks.check_binds)["bind"]
    assert found.severity == "error" and "/data/none (No such file" in found.what


def test_a_working_directory_that_is_not_inside(place: Place) -> None:
    (place.root / "work").rmdir()

    found = place.found(node_checks.check_binds)["bind"]

    assert found.severity == "error" and "the working directory /work" in found.what


def test_data_that_cannot_be_seen(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """As below a folder that one may not enter. The superuser of a test may enter every one."""
    place.more = {"train": ClassificationConfig()}
    node = place.node()

    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)
    (found,) = node_checks.check_data(node)
    assert found.severity == "error" and "you have no permission to read" in found.what


def test_data(place: Place) -> None:
    place.more = {"train": ClassificationConfig()}
    assert "rank 0 will download" in place.found(node_checks.check_data)["data"].what
    plain = to_plain(ClassificationConfig())
    for changes, status in (
        ({"name": "imagefolder"}, "error"),
        ({"name": "cifar10", "download": False}, "error"),
        ({"name": "imagefolder", "if_missing": "synthetic"}, "good"),
    ):
        node = place.node()
        node.job["train"]["data"] = {**plain["data"], "root": "/images", **changes}
        (found,) = node_checks.check_data(node)
        assert found.severity == status, found
    place.write("images/one")
    for root in ("/images", "/images/one"):
        node = place.node()
        node.job["train"]["data"] = {**plain["data"], "root": root, "name": "imagefolder"}
        (found,) = node_checks.check_data(node)
        assert found.severity == "good"


@pytest.mark.parametrize("check", [node_checks.check_tmp, node_checks.check_shm])
def test_tmp_and_shm(place: Place, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", short_of(2**20))
    (found,) = check(place.node())
    assert found.severity == "warning" and "has only about 1 MiB of free" in found.what

    monkeypatch.setattr(node_checks, "_write", full)
    (found,) = check(place.node())
    assert found.severity == "error"
    assert found.what == "/tmp is full" or found.what.startswith("/dev/shm is not writable")


# ---- Python and the program ----------------------------------------------------------------------


def test_usersite(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("site.getusersitepackages", lambda: str(tmp_path / "packages"))
    assert place.found(node_checks.check_usersite)["usersite"].what == (
        "there are no packages in the home folder"
    )
    (tmp_path / "packages" / "torch").mkdir(parents=True)
    assert "Python ignores" in place.found(node_checks.check_usersite)["usersite"].what
    place.env = {"PYTHONNOUSERSITE": ""}
    found = place.found(node_checks.check_usersite)["usersite"]
    assert found.severity == "warning" and found.what.endswith("replace those of the image: torch")


def test_py_path(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "torch"
    folder.mkdir()
    place.env = {"PYTHONPATH": str(tmp_path)}
    assert place.found(node_checks.check_imports)["py.path"].severity == "good"  # a mere folder
    (folder / "__init__.py").touch()
    found = place.found(node_checks.check_imports)["py.path"]
    assert found.severity == "warning" and f"torch ({tmp_path})" in found.what


def test_img_python(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_checks, "_find", lambda name, folders: None)
    assert place.found(node_checks.check_imports)["img.python"].severity == "good"
    place.more = {"train": ClassificationConfig()}
    found = place.found(node_checks.check_imports)["img.python"]
    assert found.severity == "error" and found.what.endswith("has no torch")


@pytest.mark.parametrize(
    ("run", "status"),
    [
        (["no-such-program"], "error"),
        (["./started.sh"], "good"),
        (["./absent.sh"], "error"),
        (["python", "train.py", "other.py"], "good"),
        (["python", "-u", "absent.py"], "error"),
        (["python", "-m", "package.train"], "good"),
        (["python", "-c", "import x.py"], "good"),
        (["sh", "-c", "exit"], "good"),
    ],
)
def test_program(place: Place, run: list[str], status: str) -> None:
    place.write("work/train.py")
    place.write("work/started.sh").chmod(0o755)
    place.more = {"run": run}
    place.environ["PATH"] = os.defpath

    assert place.found(node_checks.check_program)["program"].severity == status


def test_a_program_beside_a_file_that_is_taken_for_a_library(place: Place) -> None:
    place.write("work/code/train.py")
    place.write("work/code/random.py")
    place.write("work/logging.py")
    place.more = {"run": ["python", "code/train.py"]}

    found = place.found(node_checks.check_program)

    assert found["py.path"].severity == "warning"
    assert found["py.path"].what.endswith("hide libraries of the same name: random")


# ---- environment ---------------------------------------------------------------------------------


def test_env_masked(place: Place) -> None:
    place.outside = {"NCCL_IB_HCA": "mlx5", "NCCL_CROSS_NIC": "1", "NCCL_DEBUG": "INFO"}
    place.outside |= {"CUDA_HOME": "/opt/cuda", "CUDA_VERSION": "12.2"}
    place.environ |= {"NCCL_IB_HCA": "mlx4", "NCCL_DEBUG": "INFO", "NCCL_CROSS_NIC": "0"}
    place.env = {"NCCL_CROSS_NIC": "1"}  # wins over both

    found = place.found(node_checks.check_masked)["env.masked"]

    assert found.severity == "warning"
    assert found.what == "NCCL_IB_HCA is mlx5 outside and mlx4 in the container"


def test_an_image_that_chooses_a_network(place: Place) -> None:
    place.environ["NCCL_SOCKET_IFNAME"] = "eth0"
    found = place.found(node_checks.check_masked)["env.masked"]
    assert found.what == "the image itself sets NCCL_SOCKET_IFNAME=eth0"
    place.env = {"NCCL_SOCKET_IFNAME": "ib0"}
    assert place.found(node_checks.check_masked)["env.masked"].severity == "good"


@pytest.mark.parametrize(
    "line",
    [
        'export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-"/opt/a/lib:/opt/b/lib64"}"',
        "LD_LIBRARY_PATH=/opt/a/lib:/opt/b/lib64:$LD_LIBRARY_PATH",
        "export LD_LIBRARY_PATH='/opt/a/lib:/opt/b/lib64'",
    ],
)
def test_env_libs(place: Place, line: str) -> None:
    assert place.found(node_checks.check_libraries) == {}
    place.write(".singularity.d/env/10-docker2singularity.sh", f"#!/bin/sh\n{line}\n")
    place.write(".singularity.d/env/99-base.sh", "LD_LIBRARY_PATH=/runtime\n")
    place.write("opt/a/lib/libtorch.so")
    place.environ["LD_LIBRARY_PATH"] = "/host:/opt/b/lib64"
    found = place.found(node_checks.check_libraries)["env.libs"]
    assert found.severity == "warning" and found.what.endswith("folders of the image: /opt/a/lib")
    place.environ["LD_LIBRARY_PATH"] = "/host:/opt/a/lib:/opt/b/lib64"
    assert place.found(node_checks.check_libraries)["env.libs"].severity == "good"


def test_cpu_affinity(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    found = place.found(node_checks.check_cores)["cpu.affinity"]
    assert (found.severity, found.what) == (
        "warning",
        "1 core(s) are available for 2 rank(s) with 1 requested for each",
    )
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    assert place.found(node_checks.check_cores)["cpu.affinity"].severity == "good"


def test_limits(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 512))
    assert place.found(node_checks.check_limits)["limits"].severity == "warning"


# ---- GPUs ----------------------------------------------------------------------------------------

H100 = {"index": 0, "name": "NVIDIA H100", "code": 0, "free": 80 * 2**30, "total": 80 * 2**30}


@pytest.fixture
def gpu_place(place: Place) -> Place:
    place.resources["gpus_per_node"] = 2
    place.more = {"train": ClassificationConfig()}
    for name in ("nvidiactl", "nvidia-uvm"):
        place.write(f"dev/{name}")
    place.write("proc/driver/nvidia/version", "NVRM version: Kernel Module  535.104.05  Sat\n")
    place.environ |= {"CUDA_VERSION": "12.4.1", "CUDA_DRIVER_VERSION": "550.54.15"}
    return place


def judged(place: Place, **facts: Any) -> dict[str, Finding]:
    facts = {"init": 0, "cuda": 12040, "devices": [H100, {**H100, "index": 1}], **facts}
    return {finding.id: finding for finding in gpu_checks.judge_gpus(place.node(), facts)}


def test_gpus_in_order(gpu_place: Place) -> None:
    found = judged(gpu_place)

    assert {f.id: f.severity for f in found.values()} == {
        "gpu.count": "good", "gpu.alloc": "good", "gpu.driver": "good",
    }  # fmt: skip
    assert "by minor-version compatibility" in found["gpu.driver"].what


@pytest.mark.parametrize(
    ("id", "check", "more"),
    [
        ("program", node_checks.check_program, {"run": ["no-such-program"]}),
        ("program", node_checks.check_program, {"run": ["python", "absent.py"]}),
        (
            "data",
            node_checks.check_data,
            {"train": ClassificationConfig(data=Data(name="imagefolder", root="/absent"))},
        ),
    ],
)
def test_only_with_a_container_something_has_to_be_bound(
    place: Place, id: str, check: Check, more: dict[str, Any]
) -> None:
    place.more = more
    found = place.found(check)[id]
    assert found.severity == "error"
    assert "bound" not in found.fix
    assert "in the container" not in found.what + found.fix

    place.binds = ["/scratch"]
    found = place.found(check)[id]
    assert "must be bound" in found.fix
    assert found.what.endswith(" in the container")


def test_gpus_that_are_only_counted(gpu_place: Place) -> None:
    """PBS without its cgroups hook shows every job all GPUs of the node."""
    devices = [{**H100, "index": index} for index in range(4)]
    facts = {"init": 0, "cuda": 12040, "devices": devices}
    node = gpu_place.node()
    shared, own = (
        replace(node, resolved={**node.resolved, "whole_nodes": whole}) for whole in (False, True)
    )

    found = {one.id: one for one in gpu_checks.judge_gpus(shared, facts)}["gpu.count"]
    assert (found.severity, found.what) == (
        "warning", "4 GPUs are visible, but only 2 were requested",
    )  # fmt: skip
    assert "may use the same GPUs" in found.why
    assert {one.id: one for one in gpu_checks.judge_gpus(own, facts)}[
        "gpu.count"
    ].severity == "good"


def test_a_small_job_on_a_large_gpu_is_at_work_too(gpu_place: Place) -> None:
    used = 3 * 2**30
    devices = [{**H100, "free": H100["total"] - used}, {**H100, "index": 1}]

    found = judged(gpu_place, devices=devices)["gpu.alloc"]

    assert (found.severity, found.what) == (
        "warning", "GPU 0: other processes use 3.0 GiB of its memory",
    )  # fmt: skip
    idle = [{**H100, "free": H100["total"] - 2**29}, {**H100, "index": 1}]
    assert judged(gpu_place, devices=idle)["gpu.alloc"].severity == "good"


def test_no_gpu_at_all(gpu_place: Place) -> None:
    (gpu_place.root / "dev" / "nvidiactl").unlink()
    assert gpu_place.found(gpu_checks.check_gpus)["gpu.count"].severity == "warning"
    gpu_place.more = {"train": ClassificationConfig(device="cuda")}
    assert gpu_place.found(gpu_checks.check_gpus)["gpu.count"].severity == "error"
    gpu_place.more = {"train": ClassificationConfig(device="cpu")}
    assert gpu_place.found(gpu_checks.check_gpus) == {}
    gpu_place.more = {}
    gpu_place.write("dev/kfd")
    assert gpu_place.found(gpu_checks.check_gpus)["gpu.count"].severity == "unknown"


def test_no_uvm(gpu_place: Place) -> None:
    (gpu_place.root / "dev" / "nvidia-uvm").unlink()
    found = gpu_place.found(gpu_checks.check_gpus)["gpu.count"]
    assert found.severity == "error" and "nvidia-modprobe" in found.fix


def test_too_few_gpus(gpu_place: Place) -> None:
    found = judged(gpu_place, devices=[H100])["gpu.count"]
    assert found.severity == "error" and "1 of the 2 requested GPUs" in found.what
    node = gpu_place.node()
    node.job["launch"]["args"] = ["--gpus-per-task=1"]
    facts = {"init": 0, "cuda": 12040, "devices": [H100]}
    statuses = {f.id: f.severity for f in gpu_checks.judge_gpus(node, facts)}
    assert statuses["gpu.count"] == "unknown"
    assert judged(gpu_place, devices=[])["gpu.count"].severity == "error"


def test_gpus_that_are_taken_or_broken(gpu_place: Place) -> None:
    busy = judged(gpu_place, devices=[H100, {**H100, "index": 1, "free": 2**30}])["gpu.alloc"]
    assert (busy.severity, busy.what) == (
        "warning", "GPU 1: other processes use 79.0 GiB of its memory",
    )  # fmt: skip
    broken = judged(gpu_place, devices=[H100, {"index": 1, "name": "x", "code": 46}])["gpu.alloc"]
    assert broken.severity == "error" and "another process has exclusive use" in broken.what


@pytest.mark.parametrize(
    ("facts", "id", "text"),
    [
        ({"library": "libcuda.so.1: cannot open"}, "gpu.count", "libcuda.so.1 cannot be loaded in"),
        ({"hangs": 60.0}, "gpu.alloc", "does not answer"),
        ({"init": 999}, "gpu.alloc", "fails with an unknown error"),
        ({"init": 803}, "gpu.alloc", "does not match the kernel's driver"),
        ({"init": 804}, "gpu.alloc", "do not work with the image's compatibility"),
        ({"init": 100}, "gpu.alloc", "sees no GPU"),
        ({"init": 12345}, "gpu.alloc", "CUDA error 12345"),
    ],
)
def test_a_driver_that_fails(gpu_place: Place, facts: dict[str, Any], id: str, text: str) -> None:
    found = judged(gpu_place, **facts)[id]
    assert found.severity == "error" and text in found.what


@pytest.mark.parametrize(
    ("driver", "cuda", "works", "status"),
    [
        ("550.54.15", "12.4.1", True, "good"),
        ("535.104.05", "12.4.1", True, "good"),
        ("470.57.02", "12.4.1", False, "error"),
        ("470.57.02", "12.4.1", True, "good"),  # by compatibility libraries
        ("535.104.05", "13.0.1", False, "error"),
        ("535.104.05", "99.1", True, "unknown"),
        ("535.104.05", "", True, "unknown"),
    ],
)
def test_gpu_driver(gpu_place: Place, driver: str, cuda: str, works: bool, status: str) -> None:
    gpu_place.write("proc/driver/nvidia/version", f"NVRM version: x  {driver}  y\n")
    gpu_place.environ |= {"CUDA_VERSION": cuda, "CUDA_DRIVER_VERSION": "550.54.15" if cuda else ""}

    found = judged(gpu_place, init=0 if works else 100)["gpu.driver"]

    assert found.severity == status, found


def test_the_compatibility_libraries_are_named(gpu_place: Place) -> None:
    gpu_place.write("proc/driver/nvidia/version", "NVRM version: x  470.57.02  y\n")
    gpu_place.write("usr/local/cuda/compat/libcuda.so.1")
    assert "/usr/local/cuda/compat first in" in judged(gpu_place, init=100)["gpu.driver"].fix


def test_the_driver_is_really_asked(gpu_place: Place) -> None:
    """This machine may have none; the question itself must come to an answer."""
    facts = gpu_checks._ask_driver(gpu_place.node())
    assert "library" in facts or "init" in facts


# ---- network -------------------------------------------------------------------------------------


def test_net_name(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    found = place.found(network_checks.check_names)["net.name"]
    assert found.severity == "error" and "127.0.0.1, which is this node itself" in found.what
    place.environ["HPC_AMP_MASTER_ADDR"] = "10.1.2.3"
    assert place.found(network_checks.check_names)["net.name"].severity == "good"
    place.environ["HPC_AMP_MASTER_ADDR"] = "no-such-node.invalid"
    found = place.found(network_checks.check_names)["net.name"]
    assert found.severity == "error" and "cannot be resolved in the container" in found.what
    place.resources["nodes"] = 1
    assert place.found(network_checks.check_names) == {}


def test_net_port(place: Place) -> None:
    assert place.found(network_checks.check_port)["net.port"].severity == "unknown"
    place.write("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n")
    assert place.found(network_checks.check_port)["net.port"].severity == "good"
    place.write("proc/sys/net/ipv4/ip_local_port_range", "1024\t65535\n")
    assert place.found(network_checks.check_port)["net.port"].severity == "warning"


@pytest.mark.parametrize(
    ("value", "exact", "meant"),
    [
        ("eth", False, ["eth0", "eth1"]),
        ("eth", True, []),
        ("eth1,ib", False, ["eth1", "ib0"]),
        ("=eth", False, []),
        ("=eth0", False, ["eth0"]),
        ("^docker,lo", False, ["eth0", "eth1", "ib0"]),
        ("^eth,ib", False, ["docker0"]),
        ("^eth,ib,docker", False, []),
        ("hsn", False, []),
    ],
)
def test_interface_names(value: str, exact: bool, meant: list[str]) -> None:
    names = ["lo", "docker0", "eth0", "eth1", "ib0"]
    assert network_checks.interfaces(value, names, exact=exact) == meant


def test_net_if(gpu_place: Place) -> None:
    def found(**environ: str) -> Finding:
        gpu_place.environ |= environ
        (finding,) = network_checks.check_interfaces(gpu_place.node(), ["lo", "eth0"])
        del gpu_place.environ[next(iter(environ))]
        return finding

    assert found(NCCL_SOCKET_IFNAME="eth").severity == "good"
    wrong = found(NCCL_SOCKET_IFNAME="ib0")
    assert wrong.severity == "error" and "(from the image)" in wrong.what
    assert found(GLOO_SOCKET_IFNAME="eth").severity == "error"
    (gpu_place.root / "dev" / "nvidiactl").unlink()
    assert found(NCCL_SOCKET_IFNAME="ib0").severity == "warning"  # nobody will use NCCL


def test_net_ib(gpu_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_place.found(network_checks.check_infiniband) == {}
    (gpu_place.root / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (65536, 65536))
    found = gpu_place.found(network_checks.check_infiniband)["net.ib"]
    assert found.severity == "warning"
    for lack in (
        "/dev/infiniband is not in the container",
        "no libibverbs",
        "64 KiB of memory may be",
    ):
        assert lack in found.what
    gpu_place.write("dev/infiniband/uverbs0")
    gpu_place.write("usr/lib/x86_64-linux-gnu/libibverbs.so.1")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY,) * 2)
    assert gpu_place.found(network_checks.check_infiniband)["net.ib"].severity == "good"


def test_a_check_that_fails_itself_says_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def check_tmp(node: Node) -> Findings:
        raise RuntimeError("oops")

    monkeypatch.setattr(node_checks, "CHECKS", {"tmp": check_tmp})
    (found,) = node_checks.look(place.node())
    assert (found.id, found.severity) == ("tmp", "unknown") and "oops" in found.what


def test_every_id_is_in_the_catalogue() -> None:
    known = {check.id for check in CATALOGUE}
    import re

    used = set()
    for module in (node_checks, network_checks, gpu_checks, meeting):
        text = Path(str(module.__file__)).read_text()
        used |= set(re.findall(r'(?:Finding|_space)\(\s*"([\w.]+)"', text))
    used |= set(re.findall(r"finding ([a-z.]+) ", SCRIPT.read_text()))
    assert len(used) > 20
    assert used <= known


# ---- the nodes together --------------------------------------------------------------------------


class Nodes:
    """Several nodes on one machine, each in a thread, with the meeting between them."""

    def __init__(self, place: Place, count: int) -> None:
        self.place = place
        place.resources["nodes"] = count
        place.environ["HPC_AMP_MASTER_PORT"] = str(free_ports(1)[0])
        self.folder = place.run_dir / "attempts" / "1"
        names = [f"n{index + 1}" for index in range(count)]
        (self.folder / "nodes").write_text("\n".join(f"{name}.cluster" for name in names))

    def meeting(self, name: str, limit: float = 5.0) -> Meeting:
        return Meeting(self.place.node(), self.folder, name, limit=limit)

    def run(self, *tasks: Callable[[], None]) -> None:
        threads = [threading.Thread(target=task) for task in tasks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()

    def report(self, name: str = "preflight.json") -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / name).read_text())
        return content


GOOD = Finding("bind", "good", "all binds are visible")
FULL = Finding("tmp", "error", "/tmp is full", "why", "fix")


def test_each_finding_is_said_once(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = Nodes(place, 4)
    nodes.run(
        lambda: nodes.meeting("n1").first([GOOD], 0.1),
        lambda: nodes.meeting("n2").other([FULL, GOOD], 0.1),
        lambda: nodes.meeting("n3").other([FULL], 0.1),
        lambda: nodes.meeting("n4").other([GOOD], 0.1),
    )

    report = nodes.report()
    assert report["nodes"] == ["n1", "n2", "n3", "n4"]
    assert report["failed"] == "tmp: /tmp is full on n2, n3"
    where = {finding["id"]: finding["where"] for finding in report["findings"]}
    assert (where["tmp"], where["bind"]) == ("n2, n3", "n1, n2, n4")
    statuses = {finding["id"]: finding["severity"] for finding in report["findings"]}
    assert {statuses[id] for id in ("net.reach", "code", "clock")} == {"good"}
    said = capsys.readouterr()
    assert said.err == "hpc-amp: preflight: tmp: /tmp is full on n2, n3: why; fix\n"
    assert said.out.startswith("preflight: 4 node(s) in ")


def test_a_node_that_is_silent(place: Place) -> None:
    nodes = Nodes(place, 3)
    nodes.run(
        lambda: nodes.meeting("n1", 1.0).first([GOOD], 0.1),
        lambda: nodes.meeting("n3").other([GOOD], 0.1),
    )

    assert nodes.report()["failed"] == "net.reach: 1 node(s) did not answer within 1 s: n2 on n1"


def test_a_node_whose_container_did_not_start(place: Place) -> None:
    nodes = Nodes(place, 2)
    finding = {"id": "bind", "severity": "error", "what": "/x does not exist", "why": "", "fix": ""}
    report = {"node": "n2", "failed": "bind", "findings": [{**finding, "where": "n2"}]}
    (nodes.folder / "preflight-n2.json").write_text(json.dumps(report))

    nodes.meeting("n1").first([GOOD], 0.1)

    assert nodes.report()["failed"] == "bind: /x does not exist on n2"


def test_a_first_node_that_has_ended(place: Place) -> None:
    nodes = Nodes(place, 2)
    (nodes.folder / "preflight-n1.json").write_text("{}")

    nodes.meeting("n2", 60.0).other([FULL], 0.1)

    assert nodes.report("preflight-n2.json")["failed"] == "tmp: /tmp is full on n2"


def test_a_first_node_that_cannot_be_reached(place: Place) -> None:
    nodes = Nodes(place, 2)

    nodes.meeting("n2", 0.5).other([GOOD], 0.1)

    assert (
        "cannot connect to the first node at 127.0.0.1:"
        in (nodes.report("preflight-n2.json")["failed"])
    )


def test_a_port_that_is_taken(place: Place) -> None:
    nodes = Nodes(place, 1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(place.environ["HPC_AMP_MASTER_PORT"])))
        taken.listen()
        nodes.meeting("n1").first([GOOD], 0.1)

    assert nodes.report()["failed"].startswith("net.port: port ")


def test_a_first_node_whose_name_is_not_known(place: Place) -> None:
    """As in an image without an /etc/hosts: no other port would help."""
    nodes = Nodes(place, 1)
    place.environ["HPC_AMP_MASTER_ADDR"] = "no-such-node.invalid"

    nodes.meeting("n1").first([GOOD], 0.1)

    assert nodes.report()["failed"].startswith(
        "net.name: MASTER_ADDR no-such-node.invalid cannot be resolved: "
    )


def test_a_first_node_that_is_not_the_first(place: Place) -> None:
    nodes = Nodes(place, 2)
    place.environ["HPC_AMP_MASTER_ADDR"] = "192.0.2.1"  # for documentation: nobody's

    nodes.meeting("n1").first([GOOD], 0.1)

    assert "is not an address of the first node" in nodes.report()["failed"]


def test_other_code_and_another_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(place, 2)
    meeting = nodes.meeting("n1")
    others = {"n2": {"findings": [], "snapshot": "else", "late": 3600.0}}

    found = {finding.id: finding for finding in meeting._compare(others)}

    assert found["code"].severity == "error"
    assert (found["clock"].severity, found["clock"].what) == (
        "warning", "clocks differ from that of the first node: n2 by -3600 s",
    )  # fmt: skip


def test_the_snapshot_is_that_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("1")
    before = snapshot(tmp_path)
    assert before == snapshot(tmp_path)
    (tmp_path / "src" / "a.py").write_text("2")
    assert before != snapshot(tmp_path)


# ---- outside the container -----------------------------------------------------------------------


def outside(folder: Path, image: str, *words: str) -> tuple[str, dict[str, Any] | None]:
    """What preflight.sh says, and its report."""
    result = subprocess.run(
        ["bash", str(SCRIPT), str(folder), image, *words],
        env=clean_environ(), text=True, capture_output=True, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0
    name = socket.gethostname().partition(".")[0]
    report = folder / f"preflight-{name}.json"
    return result.stderr, json.loads(report.read_text()) if report.exists() else None


def test_bind_sources_that_are_missing(tmp_path: Path) -> None:
    said, report = outside(tmp_path, "", "/no/a", "/", '/no/"b"', "--", "env", "true")

    assert report is not None
    assert [finding["what"].split(" is to")[0] for finding in report["findings"]] == [
        "/no/a", '/no/"b"',
    ]  # fmt: skip
    assert report["failed"].startswith("bind: /no/a is to be bound")
    assert said.count("hpc-amp: preflight: bind: ") == 2


def test_an_image_or_a_runtime_that_this_node_lacks(tmp_path: Path) -> None:
    _, report = outside(tmp_path, "/no/image.sif", "--", "/no/apptainer", "exec")
    assert report is not None
    assert [finding["id"] for finding in report["findings"]] == ["rt.found", "img.local"]


def test_a_python_that_this_node_lacks(tmp_path: Path) -> None:
    said, report = outside(tmp_path, "", "--", "env", "/no/python", "src")
    assert report is not None
    assert [finding["id"] for finding in report["findings"]] == ["img.python"]
    assert report["failed"].startswith("img.python: no Python at /no/python on ")
    assert "container does not start" not in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_an_image_that_may_not_be_read(tmp_path: Path) -> None:
    image = tmp_path / "image.sif"
    image.write_bytes(b"x")
    image.chmod(0o600)
    reports = tmp_path / "reports"
    reports.mkdir()
    reports.chmod(0o777)
    for folder in (tmp_path, *tmp_path.parents):
        if "/pytest-of-" in str(folder):
            folder.chmod(0o755)
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]

    subprocess.run(
        [*nobody, "bash", str(SCRIPT), str(reports), str(image), "--", "/bin/true"],
        check=True, timeout=300, capture_output=True,
    )  # fmt: skip

    (report,) = reports.glob("preflight-*.json")
    (finding,) = json.loads(report.read_text())["findings"]
    assert finding["id"] == "img.local" and "may not be read" in finding["what"]


@pytest.mark.parametrize(
    ("said", "id"),
    [
        ("FATAL:   the image's architecture (arm64) could not run on the host", "img.arch"),
        ("exec /usr/bin/python3: exec format error", "img.arch"),
        ("FATAL:   mkdir /tmp/x: no space left on device", "tmp"),
        ('FATAL:   "python3": executable file not found in $PATH', "img.python"),
        ("hpc-amp: preflight: fs: /r is not writable: Read-only file system", "fs"),
        ("FATAL:   stat /opt/python: no such file or directory", "img.python"),
        ("hpc-amp: this is Python 3.8, and hpc-amp needs 3.10", "img.python"),
        ("FATAL:   container creation failed: mount", "rt.start"),
        ("", "rt.start"),
    ],
)  # fmt: skip
def test_a_container_that_does_not_start(tmp_path: Path, said: str, id: str) -> None:
    command = ["env", "sh", "-c", 'echo "INFO: something"; [ -z "$0" ] || echo "$0" >&2; exit 255']

    shown, report = outside(tmp_path, "", "--", *command, said)

    assert report is not None
    assert report["findings"][0]["id"] == id, shown
    assert (
        said.removeprefix("FATAL:").strip().removeprefix("hpc-amp: preflight: fs: ")
        in (report["findings"][0]["what"])
    )


# ---- in a launch script --------------------------------------------------------------------------


def test_an_error_ends_the_job_before_its_program(host: StubHost) -> None:
    run_dir = host.create({"run": ["no-such-program"]}, "launch.preflight=true")

    ended = host.run(run_dir)

    assert events(run_dir) == ["started", "failed"]
    reason = read_events(run_dir)[-1]["reason"]
    assert reason.startswith("preflight: program: the program no-such-program does not exist on ")
    assert "no rank was started" in ended.output
    assert len(host.calls("srun")) == 1


def test_a_good_node_goes_on(host: StubHost) -> None:
    run_dir = host.create({"run": ["true"]}, "launch.preflight=true")

    ended = host.run(run_dir)

    assert events(run_dir) == ["started", "finished"]
    assert "preflight: 1 node(s) in" in ended.output
    first, second = host.calls("srun")
    assert "--preflight" in first and "--preflight" not in second


def test_no_answer_ends_the_job(host: StubHost) -> None:
    run_dir = host.create({"run": ["true"]}, "launch.preflight=true")
    host.fail("srun", "Unable to create step: Zero Bytes were transmitted or received")

    ended = host.run(run_dir)

    assert events(run_dir) == ["started", "failed"]
    assert "preflight: no answer from the first node" in ended.output


def test_no_secret_of_the_environment_is_compared(tmp_path: Path) -> None:
    """What differs is shown in the log."""
    command = ["env", "sh", "-c", 'printf "%s" "$HPC_AMP_OUTSIDE" >"$0"', str(tmp_path / "seen")]
    environ = clean_environ(HF_TOKEN="secret", https_proxy="http://me:secret@proxy", NCCL_DEBUG="x")

    subprocess.run(
        ["bash", str(SCRIPT), str(tmp_path), "", "--", *command],
        env=environ, check=True, timeout=300, capture_output=True,
    )  # fmt: skip

    seen = (tmp_path / "seen").read_text()
    assert "NCCL_DEBUG=x" in seen.splitlines()
    assert "secret" not in seen


def test_an_old_python_says_so(tmp_path: Path) -> None:
    """Before it meets syntax that it does not know: the snapshot's entry is old Python itself."""
    (tmp_path / "__main__.py").write_text(MAIN)
    pretend = "import runpy, sys; sys.version_info = (3, 8); runpy.run_path(sys.argv[1])"

    result = subprocess.run(
        [sys.executable, "-c", pretend, str(tmp_path)], text=True, capture_output=True, timeout=300
    )

    assert result.returncode == 1
    assert result.stderr == "hpc-amp: this is Python 3.8, and hpc-amp needs 3.10\n"


def test_trackers(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert place.found(node_checks.check_trackers) == {}
    place.more = {"train": Train(trackers=["tensorboard", "wandb", "not_ours"])}
    there = SimpleNamespace(origin="/somewhere/__init__.py")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: there)
    assert place.found(node_checks.check_trackers)["trackers"].severity == "good"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "wandb" else there)
    found = place.found(node_checks.check_trackers)["trackers"]
    assert found.severity == "warning" and "there is no package wandb here" in found.what
