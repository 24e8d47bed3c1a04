"""`hpc-amp doctor` on the login side: every check in a situation that makes it speak."""

from __future__ import annotations

import json
import os
import struct
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.environment import REPOSITORY, working_directory
from support.stubs import StubHost

from hpc_amp.config.sites import load_for_site
from hpc_amp.containers import CONTAINERS
from hpc_amp.doctor import catalogue, data, examine, image_inside, job, machine, network
from hpc_amp.errors import ConfigError, SchedulerError
from hpc_amp.finding import Finding, to_text
from hpc_amp.jobs.status import RunStatus
from hpc_amp.schedulers.slurm import limits

AUTO = CONTAINERS.get("auto")()


def request(
    folder: Path, config: dict[str, Any], site: dict[str, Any] | None = None
) -> job.CheckedRequest:
    """A job on a site of its own."""
    (folder / "own.yaml").write_text(yaml.safe_dump(site or {"scheduler": "slurm"}))
    path = folder / "job.yaml"
    path.write_text(
        yaml.safe_dump(
            {"name": "test", "site": str(folder / "own.yaml"), "run": ["true"], **config}
        )
    )
    with working_directory(folder):
        loaded, chosen = load_for_site(path)
    return job.CheckedRequest(loaded, chosen, {"HOME": "/home/me"})


@pytest.fixture
def tmp_path(disk: Path) -> Path:
    """Where nothing is wrong: doctor warns of what is in memory."""
    return disk


def one(findings: Iterator[Finding], id: str) -> Finding:
    """The finding of this id."""
    (found,) = [finding for finding in findings if finding.id == id]
    return found


def sif(path: Path, architecture: bytes = b"02") -> Path:
    """The head of a SIF file with nothing in it."""
    head = b"#!/usr/bin/env run-singularity\n".ljust(32, b"\0") + b"SIF_MAGIC\0" + b"01\0"
    head += architecture + b"\0"
    path.write_bytes(head.ljust(80, b"\0") + struct.pack("<6q", 0, 0, 128, 0, 128, 0))
    return path


# ---- the machine ---------------------------------------------------------------------------------


def program(folder: Path, text: str) -> Callable[[str], str | None]:
    """A container program that says this version."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    path = folder / "bin" / "apptainer"
    path.write_text(f"#!/bin/sh\necho '{text}'\n")
    path.chmod(0o755)
    return lambda name: str(path) if name == "apptainer" else None


def root_of(folder: Path, **values: str) -> Path:
    """A machine's files, as far as they are looked at."""
    (folder / "dev").mkdir(parents=True)
    (folder / "dev" / "fuse").touch()
    for name, value in values.items():
        path = folder / "proc/sys" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value)
    return folder


def test_no_runtime() -> None:
    def found(**how: Any) -> Finding:
        return one(AUTO.check_here(which=lambda name: None, **how), "rt.found")

    assert found(needed=True).severity == "error"
    assert found(needed=False).severity == "warning"
    elsewhere = found(needed=True, elsewhere="the job's setup may load it on the nodes")
    assert (elsewhere.severity, elsewhere.what) == (
        "unknown",
        "no apptainer or singularity on this machine's PATH, but the job's setup may load it on "
        "the nodes",
    )


def test_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    which = program(tmp_path, "apptainer version 1.4.5")

    def found(**values: str) -> Finding:
        root = root_of(tmp_path / f"root{len(list(tmp_path.iterdir()))}", **values)
        return one(AUTO.check_here(needed=True, which=which, root=root), "rt.found")

    good = found(user__max_user_namespaces="1000")
    assert good.severity == "good" and "apptainer version 1.4.5, user namespaces" in good.what
    off = found(user__max_user_namespaces="0")
    assert off.severity == "error" and "user.max_user_namespaces is 0" in off.what
    assert found(kernel__unprivileged_userns_clone="0").severity == "error"
    starter = tmp_path / "libexec" / "apptainer" / "bin" / "starter-suid"
    starter.parent.mkdir(parents=True)
    starter.touch()
    starter.chmod(0o4755)
    setuid = found(user__max_user_namespaces="0")
    assert setuid.severity == "good" and "setuid" in setuid.what


def test_no_fuse(tmp_path: Path) -> None:
    which = program(tmp_path, "apptainer version 1.4.5")
    found = one(AUTO.check_here(needed=True, which=which, root=tmp_path), "rt.found")
    assert found.severity == "warning" and "/dev/fuse cannot be used" in found.what


def test_cache(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "cache").mkdir(parents=True)
    environ = {"HOME": str(home), "APPTAINER_CACHEDIR": str(home / "cache")}
    assert "in your home folder" in one(AUTO.check_places(environ), "cache").what
    environ["APPTAINER_CACHEDIR"] = "/no/such/folder"
    found = one(AUTO.check_places(environ), "cache")
    assert found.severity == "warning" and "not a folder with write permission" in found.what
    environ["APPTAINER_CACHEDIR"] = str(tmp_path)
    assert one(AUTO.check_places(environ), "cache").severity == "good"
    if job.file_system(Path("/dev/shm")) == "tmpfs":
        environ = {"HOME": str(home), "SINGULARITY_TMPDIR": "/dev/shm"}
        assert "SINGULARITY_TMPDIR=/dev/shm is in memory" in (
            one(AUTO.check_places(environ), "cache").what
        )


def test_tmp(tmp_path: Path) -> None:
    found = one(machine.check_tmp(tmp_path / "absent"), "tmp")
    assert found.severity == "error" and "is not writable" in found.what


@pytest.mark.parametrize(
    ("environ", "status", "text"),
    [
        ({}, "good", "no variable of this shell"),
        ({"PYTHONPATH": "/x"}, "good", "PYTHONPATH set in this shell"),
        ({"APPTAINERENV_LD_LIBRARY_PATH": "/x"}, "good", "APPTAINERENV_LD_LIBRARY_PATH set in"),
        ({"LD_PRELOAD": "/x/libxalt.so"}, "warning", "LD_PRELOAD=/x/libxalt.so"),
        ({"OPAL_PREFIX": "/opt/mpi"}, "warning", "OPAL_PREFIX=/opt/mpi"),
        ({"SINGULARITYENV_PATH": "/x"}, "warning", "SINGULARITYENV_PATH set variables in every"),
        ({"APPTAINER_BIND": "/no/a:/b,/"}, "warning", "APPTAINER_BIND names /no/a, which"),
    ],
)
def test_env_leak(environ: dict[str, str], status: str, text: str) -> None:
    found = one(machine.check_leaks(AUTO, environ), "env.leak")
    assert found.severity == status and text in found.what


# ---- the image -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "text"),
    [
        ("docker://ubuntu", "docker://ubuntu is a URI"),
        ("/no/such.sif", "there is no image /no/such.sif"),
        ("text.sif", "is not an image"),
    ],
)
def test_img_local(tmp_path: Path, image: str, text: str) -> None:
    (tmp_path / "text.sif").write_text("hello")
    with working_directory(tmp_path):
        found = one(job.check_image(request(tmp_path, {"container": image})), "img.local")
    assert found.severity == "error" and text in found.what


def test_an_image_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = sif(tmp_path / "image.sif")
    for kind, status in (("tmpfs", "error"), ("ext4", "warning"), ("lustre", "warning")):
        monkeypatch.setattr(job, "file_system", lambda path, kind=kind: kind)
        found = one(job.check_image(request(tmp_path, {"container": str(image)})), "img.local")
        # Below /tmp, where tests are.
        assert found.severity == status, found
    monkeypatch.setattr(Path, "is_relative_to", lambda self, other: False)
    for kind, status in (("tmpfs", "error"), ("ext4", "unknown"), ("lustre", "good")):
        monkeypatch.setattr(job, "file_system", lambda path, kind=kind: kind)
        found = one(job.check_image(request(tmp_path, {"container": str(image)})), "img.local")
        assert found.severity == status, found


def slurm_with(monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    def answer(command: list[str], **_: Any) -> Any:
        import subprocess

        return subprocess.CompletedProcess(command, 0, output, "")

    monkeypatch.setattr("hpc_amp.schedulers.slurm.limits.run_command", answer)
    monkeypatch.setattr("hpc_amp.schedulers.base.run_command", answer)


@pytest.mark.parametrize(
    ("nodes", "architecture", "status"),
    [
        ("NodeName=a Arch=x86_64 Partitions=gpu", "amd64", "good"),
        ("NodeName=a Arch=x86_64 Partitions=gpu", "arm64", "error"),
        ("NodeName=a Arch=aarch64 Partitions=gpu", "arm64", "good"),
        ("NodeName=a Arch=x86_64 Partitions=gpu\nNodeName=b Arch=aarch64 Partitions=gpu", "arm64",
         "warning"),
        ("NodeName=a Arch=x86_64 Partitions=cpu\nNodeName=b Arch=aarch64 Partitions=gpu", "arm64",
         "good"),
        ("", "s390x", "warning"),
        ("", None, "unknown"),
    ],
)  # fmt: skip
def test_img_arch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: str, architecture: str | None,
    status: str,
) -> None:  # fmt: skip
    slurm_with(monkeypatch, nodes)
    wanted = request(tmp_path, {"job": {"queue": "gpu"}})
    assert one(job.check_architecture(wanted, architecture), "img.arch").severity == status


# ---- the container's options ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "status", "text"),
    [
        ([], "good", "has all options of job and site"),
        (["--cleanenv"], "error", "--cleanenv keeps the launcher's variables"),
        (["--writable-tmpfs"], "warning", "64 MB"),
        (["--sharens"], "error", "came with Apptainer 1.3"),
        (["--no-eval"], "good", "has all options of job and site"),
    ],
)
def test_rt_flags(tmp_path: Path, args: list[str], status: str, text: str) -> None:
    container = {"image": str(sif(tmp_path / "i.sif")), "args": args}
    wanted = request(tmp_path, {"container": container, "job": {"nodes": 2}})
    which = program(tmp_path, "apptainer version 1.2.5")

    found = one(AUTO.check_options(wanted.options, ranks=2, which=which), "rt.flags")

    assert found.severity == status and text in found.what


@pytest.mark.parametrize(
    ("args", "status"),
    [
        (["--env", "A=1,B=2,3"], "error"),
        (["--env=A=$(id)"], "error"),
        (["--env", "NICS=hsn0,hsn1"], "good"),
        ([], "good"),
    ],
)
def test_env_value(tmp_path: Path, args: list[str], status: str) -> None:
    container = {"image": str(sif(tmp_path / "i.sif")), "args": args}
    wanted = request(tmp_path, {"container": container})
    which = program(tmp_path, "apptainer version 1.4.5")
    found = one(AUTO.check_options(wanted.options, ranks=1, which=which), "env.value")
    assert found.severity == status


# ---- folders -------------------------------------------------------------------------------------


def test_bind(tmp_path: Path) -> None:
    image = str(sif(tmp_path / "i.sif"))
    for config, site, status in (
        ({"bind": ["/no/such:/x"]}, {}, "warning"),
        ({"bind": ["/no/such:/x"]}, {"scheduler": "local"}, "error"),
        ({}, {"bind": ["/no/such"]}, "unknown"),
        ({}, {"bind": ["/no/such"], "scheduler": "local"}, "error"),
        ({"bind": ["/tmp"]}, {}, "good"),
    ):
        wanted = request(
            tmp_path, {"container": {"image": image, **config}}, {"scheduler": "slurm", **site}
        )
        with working_directory(tmp_path):
            assert one(job.check_folders(wanted), "bind").severity == status


def test_cwd(tmp_path: Path) -> None:
    container = {"image": str(sif(tmp_path / "i.sif")), "args": ["--no-home"]}
    wanted = request(tmp_path, {"container": container, "runs_dir": str(tmp_path)})
    with working_directory(tmp_path):
        assert one(job.check_folders(wanted), "cwd").severity == "good"
        at_home = job.CheckedRequest(wanted.loaded, wanted.site, {"HOME": str(tmp_path)})
        assert one(job.check_folders(at_home), "cwd").severity == "warning"
    with working_directory(Path("/opt")):
        assert one(job.check_folders(wanted), "cwd").severity == "error"


def test_fs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = request(tmp_path, {"runs_dir": str(tmp_path / "runs")}, {"scheduler": "local"})
    assert one(job.check_run_folder(local), "fs").severity in ("good", "warning")
    far = request(tmp_path, {"runs_dir": str(tmp_path / "runs")})
    monkeypatch.setattr(job, "file_system", lambda path: "tmpfs")
    assert one(job.check_run_folder(far), "fs").severity == "error"
    (tmp_path / "file").touch()
    nowhere = request(tmp_path, {"runs_dir": str(tmp_path / "file")})
    assert one(job.check_run_folder(nowhere), "fs").severity == "error"


def test_a_log_folder_that_pbs_cannot_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PBS holds a job whose log it cannot open, and this machine is not a node."""
    site = {"scheduler": "pbs"}
    monkeypatch.setattr(job, "file_system", lambda path: "ext4")
    monkeypatch.setattr(job, "IN_MEMORY", ())
    runs = {"runs_dir": "/opt/runs"}
    found = one(job.check_run_folder(request(tmp_path, runs, site)), "fs")
    assert found.severity == "unknown"
    assert "holds the job if it cannot" in found.why
    assert one(job.check_run_folder(request(tmp_path, runs)), "fs").severity != "unknown"
    monkeypatch.setattr(job, "file_system", lambda path: "nfs")
    assert one(job.check_run_folder(request(tmp_path, runs, site)), "fs").severity != "unknown"

    absent = {"job": {"directives": [f"-j oe -o {tmp_path}/absent/job.log"]}}
    found = one(job.check_log_folders(request(tmp_path, absent, site)), "fs")
    assert found.severity == "error"
    assert found.what == f"-o {tmp_path}/absent/job.log: {tmp_path}/absent is not writable"
    for line in (f"-o {tmp_path}/job.log", f"-o {tmp_path}", "-o job.log"):
        there = {"job": {"directives": [line]}}
        assert list(job.check_log_folders(request(tmp_path, there, site))) == []


# ---- the data ------------------------------------------------------------------------------------

PICTURES = ("pictures/train/cat", "pictures/train/dog", "pictures/val/cat", "pictures/val/dog")
FOLDERS = [*PICTURES, "no-test/train/cat", "no-class/train", "no-class/test", "empty"]


@pytest.mark.parametrize(
    ("settings", "here", "elsewhere", "text"),
    [
        ({"name": "synthetic", "root": "absent"}, "good", "good", "synthetic images need no files"),
        (
            {"name": "imagefolder", "root": "pictures"},
            "good",
            "good",
            "imagefolder is in {}/pictures",
        ),
        (
            {"name": "imagefolder", "root": "absent"},
            "error",
            "warning",
            "the folder {}/absent does not exist",
        ),
        (
            {"name": "imagefolder", "root": "no-test"},
            "error",
            "warning",
            "{}/no-test is not an image folder: expected train/<class>/* and test/<class>/* "
            "(or val)",
        ),
        (
            {"name": "imagefolder", "root": "no-class"},
            "error",
            "warning",
            "{}/no-class/train contains no folder of a class",
        ),
        (
            {"name": "imagefolder", "root": "job.yaml"},
            "error",
            "warning",
            "{}/job.yaml is not a tar file",
        ),
        ({"name": "mnist", "root": "job.yaml"}, "error", "warning", "{}/job.yaml is not a folder"),
        ({"name": "imagefolder", "root": "a.tar"}, "good", "good", "{}/a.tar is a tar file"),
        ({"name": "cifar10", "root": "sets"}, "good", "good", "cifar10 is in {}/sets"),
        (
            {"name": "cifar10", "root": "sets/cifar-10-batches-py"},
            "good",
            "good",
            "cifar10 is in {}/sets/cifar-10-batches-py",
        ),
        ({"name": "mnist", "root": "idx"}, "good", "good", "mnist is in {}/idx"),
        (
            {"name": "cifar10", "root": "empty"},
            "good",
            "unknown",
            "cifar10 is not in {}/empty: cifar-10-batches-py is missing: rank 0 will download it",
        ),
        (
            {"name": "mnist", "root": "absent"},
            "good",
            "unknown",
            "the folder {}/absent does not exist: rank 0 will download it",
        ),
        (
            {"name": "mnist", "root": "absent", "download": False},
            "error",
            "warning",
            "the folder {}/absent does not exist",
        ),
        (
            {"name": "mnist", "root": "absent", "if_missing": "synthetic"},
            "warning",
            "warning",
            "the folder {}/absent does not exist: the job would train on synthetic images",
        ),
        (
            {"name": "mnist", "root": "/proc/sets"},
            "error",
            "warning",
            "the folder /proc/sets does not exist, and it cannot be downloaded because /proc is "
            "not writable",
        ),
    ],
)
def test_data(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    here: str,
    elsewhere: str,
    text: str,
) -> None:
    for name in (*FOLDERS, "sets/cifar-10-batches-py", "idx"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "idx" / "train-images-idx3-ubyte.gz").touch()
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(tmp_path / "idx", "idx")
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).startswith("/proc"))
    monkeypatch.setattr(Path, "is_relative_to", lambda path, other: False)  # pytest's is in /tmp
    config = {"run": None, "train": {"data": settings}}

    for scheduler, status in (("local", here), ("slurm", elsewhere)):
        wanted = request(tmp_path, config, {"scheduler": scheduler})
        with working_directory(tmp_path):
            found = one(data.check_data(wanted), "data")
        assert (found.severity, found.what.startswith(text.format(tmp_path))) == (status, True), (
            found
        )


def test_data_that_other_machines_do_not_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sets" / "cifar-10-batches-py").mkdir(parents=True)
    config = {"run": None, "train": {"data": {"root": str(tmp_path / "sets")}}}
    monkeypatch.setattr(data, "file_system", lambda path: "tmpfs")
    assert one(data.check_data(request(tmp_path, config)), "data").severity == "error"
    local = request(tmp_path, config, {"scheduler": "local"})
    assert one(data.check_data(local), "data").severity == "good"


def test_data_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    config = {"run": None, "train": {"data": {"root": str(tmp_path)}}}
    local = request(tmp_path, config, {"scheduler": "local"})
    found = one(data.check_data(local), "data")
    assert (found.severity, found.what) == ("error", f"you have no permission to read {tmp_path}")


def test_data_that_cannot_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As below a folder that one may not enter. The superuser of a test may enter every one."""

    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    config = {"run": None, "train": {"data": {"name": "imagefolder", "root": str(tmp_path)}}}
    found = one(data.check_data(request(tmp_path, config, {"scheduler": "local"})), "data")
    assert found.severity == "error"
    assert found.what == f"{tmp_path} cannot be read: Permission denied"


def test_a_program_of_ones_own_has_no_data_set(tmp_path: Path) -> None:
    assert list(data.check_data(request(tmp_path, {}))) == []


def test_doctor_looks_for_the_files_that_the_job_looks_for(tmp_path: Path) -> None:
    from hpc_amp.data.sources import PUBLIC_SETS

    assert set(data.PUBLIC_FILES) == set(PUBLIC_SETS)
    for name, patterns in data.PUBLIC_FILES.items():
        for index, pattern in enumerate(patterns):
            root = tmp_path / f"{name}-{index}"
            wanted = root / pattern.replace("*", ".gz")
            assert PUBLIC_SETS[name].find(root) is None
            wanted.parent.mkdir(parents=True)
            wanted.touch() if pattern.endswith("*") else wanted.mkdir()
            assert PUBLIC_SETS[name].find(root) is not None


# ---- the program and the names of networks -------------------------------------------------------


def test_run(tmp_path: Path) -> None:
    (tmp_path / "there.py").touch()
    with working_directory(tmp_path):
        there = request(tmp_path, {"run": ["python", "there.py"]})
        assert one(job.check_run(there), "program").severity == "good"
        absent = request(tmp_path, {"run": ["python", "absent.py"]})
        assert one(job.check_run(absent), "program").severity == "error"
        model = request(tmp_path, {"run": None, "train": {"model": "resnet19"}})
        found = one(job.check_run(model), "config")
    assert (found.severity, found.what) == (
        "error", "train.model.name: there is no model 'resnet19'"
    )  # fmt: skip


# ---- the scheduler -------------------------------------------------------------------------------

# As sinfo writes it: partition, state, time limit, nodes of a job, nodes, GPUs of a node.
SINFO = """\
batch*|up|1-00:00:00|1-infinite|2|gpu:4
batch*|up|1-00:00:00|1-infinite|2|gpu:a100:8(S:0-1),nvme:1
debug|up|30:00|1-2|4|gpu:4
large|up|1-00:00:00|3-infinite|9|gpu:4
cpu|up|1-00:00:00|1-infinite|9|(null)
closed|down|infinite|1-infinite|9|gpu:4
"""


@pytest.mark.parametrize(
    ("resources", "status", "text"),
    [
        ({}, "good", "Slurm answers"),
        ({"queue": "absent"}, "error", "there is no partition absent"),
        ({"queue": "closed"}, "warning", "the partition closed is down"),
        ({"queue": "debug", "walltime": "2h"}, "error", "more than debug allows (00:30:00)"),
        ({"queue": "debug,batch", "walltime": "2h"}, "good", "Slurm answers"),
        ({"nodes": 5}, "error", "job.nodes is 5, and batch has 4"),
        (
            {"nodes": 3, "queue": "debug", "walltime": "9m"},
            "error",
            "debug allows at most 2 for a job",
        ),
        ({"nodes": 2, "queue": "large"}, "error", "large needs at least 3 for a job"),
        ({"queue": "cpu"}, "error", "gpus_per_node is 1, and the nodes of cpu have none"),
        ({"queue": "cpu", "gpus_per_node": 0}, "good", "Slurm answers"),
        ({"gpus_per_node": 9}, "error", "gpus_per_node is 9, and the nodes of batch have 8"),
        ({"gpus_per_node": 8, "nodes": 3}, "error", "nodes is 3, and batch has 2 with 8 GPUs"),
        ({"nodes": 5, "directives": ["--qos=big"]}, "good", "Slurm answers"),
        ({"nodes": 5, "directives": ["-p large"]}, "good", "Slurm answers"),
        ({"nodes": 5, "directives": ["--constraint=gpu"]}, "good", "Slurm answers"),
        (
            {"nodes": 5, "queue": "batch", "directives": ["--constraint=gpu"]},
            "error",
            "job.nodes is 5, and batch has 4",
        ),
    ],
)
def test_sched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resources: dict[str, Any], status: str,
    text: str,
) -> None:  # fmt: skip
    slurm_with(monkeypatch, SINFO)
    monkeypatch.setattr("hpc_amp.schedulers.slurm.squeue.run_command", limits.run_command)
    wanted = request(tmp_path, {"job": resources})

    found = one(job.check_scheduler(wanted, lambda name: f"/bin/{name}"), "sched")

    assert found.severity == status and text in found.what


def test_a_scheduler_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = request(tmp_path, {})
    absent = one(job.check_scheduler(wanted, lambda name: None), "sched")
    assert absent.severity == "error" and "sbatch is not on this machine's PATH" in absent.what

    def silent(*_: Any, **__: Any) -> None:
        raise SchedulerError("`squeue` did not answer within 60 s")

    monkeypatch.setattr("hpc_amp.schedulers.slurm.squeue.run_command", silent)
    found = one(job.check_scheduler(wanted, lambda name: f"/bin/{name}"), "sched")
    assert found.severity == "error" and "did not answer" in found.what


def test_a_margin_that_is_too_short_for_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_with(monkeypatch, SINFO)
    monkeypatch.setattr("hpc_amp.schedulers.slurm.squeue.run_command", limits.run_command)
    wanted = request(tmp_path, {"run": None, "train": {}, "job": {"stop_margin": "10s"}})
    found = one(job.check_scheduler(wanted, lambda name: f"/bin/{name}"), "sched")
    assert found.severity == "warning" and "stop_margin" in found.what


# ---- secrets -------------------------------------------------------------------------------------

TOKEN = "hf_" + "a1B2c3D4e5" * 3


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ({"container": {"env": {"HF_TOKEN": "x1y2"}}}, "container.env.HF_TOKEN"),
        ({"container": {"env": {"WANDB_API_KEY": "0123abcd"}}}, "container.env.WANDB_API_KEY"),
        ({"container": {"env": {"ANYTHING": TOKEN}}}, "container.env.ANYTHING"),
        ({"run": ["python", "x.py", f"--token={TOKEN}"]}, "run"),
        ({"job": {"setup": f"export X={TOKEN}"}}, "job.setup"),
        ({"container": {"env": {"HF_TOKEN_PATH": "/home/me/token"}}}, None),
        ({"container": {"env": {"HF_TOKEN": "$HF_TOKEN"}}}, None),
        ({"container": {"env": {"TOKENIZERS_PARALLELISM": "false", "KEYS": "3"}}}, None),
    ],
)
def test_secrets(tmp_path: Path, config: dict[str, Any], place: str | None) -> None:
    found = one(job.check_secrets(request(tmp_path, config)), "secrets")

    assert found.severity == ("warning" if place else "good")
    assert place is None or found.what.startswith(f"{place} looks ")
    for secret in ("x1y2", "0123abcd", TOKEN):
        assert secret not in json.dumps(found.to_plain())


# ---- what cannot be checked here -----------------------------------------------------------------


def test_what_only_nodes_can_tell_is_said(tmp_path: Path) -> None:
    on = list(job.check_elsewhere(request(tmp_path, {}), {"bind"}))
    off = list(job.check_elsewhere(request(tmp_path, {"launch": {"preflight": False}}), set()))

    assert {finding.severity for finding in [*on, *off]} == {"unknown"}
    assert "net.name" in {f.id for f in on} and "bind" not in {f.id for f in on}
    assert any(
        "not checked: only the nodes can do it, and launch.preflight is false" in finding.what
        for finding in off
    )


def test_errors_of_the_configuration_have_their_check() -> None:
    for message, id in (
        ("container.image: docker://x is a URI", "img.local"),
        ("container.bind: /x does not exist", "bind"),
        ("launch.method: no", "config"),
    ):
        found = job.from_config_error(ConfigError(message, where="job.yaml:3", hint="do this"))
        assert (found.id, found.severity, found.fix) == (id, "error", "do this")
        assert found.what.startswith("job.yaml:3: ")


# ---- inside the image ----------------------------------------------------------------------------

FACTS: dict[str, Any] = {
    "environ": {"CUDA_VERSION": "12.4.1", "CUDA_DRIVER_VERSION": "550.54.15"},
    "python": "3.10.12", "torch": "2.4.0a0+07cecf4168", "torchvision": "0.19.0a0",
    "torch_file": "/usr/local/lib/python3.10/dist-packages/torch/__init__.py",
}  # fmt: skip
MORE: dict[str, Any] = {
    "usersite": False, "user_folder": "/nowhere", "prefix": ["/usr", "/usr"], "count": 1,
    "devices": [{"name": "H100"}],
}  # fmt: skip


def inside(
    facts: dict[str, Any] | None = None,
    more: dict[str, Any] | None = None,
    env: dict[str, str] | None = None,
    **how: Any,
) -> dict[str, Finding]:
    how = {"trains": True, "gpus": 1, "driver": "550.54.15", **how}
    found = image_inside.judge(
        {**FACTS, **(facts or {})}, {**MORE, **(more or {})}, env or {}, **how
    )
    return {finding.id: finding for finding in found}


def test_an_image_in_order() -> None:
    found = inside()
    assert {finding.severity for finding in found.values()} == {"good"}
    assert {finding.where for finding in found.values()} == {"image"}
    assert found["img.meta"].what == "torch 2.4.0a0+07cecf4168, CUDA 12.4.1, Python 3.10.12"


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"python": "3.8.10"}, "needs Python 3.10 or newer, and the image has 3.8.10"),
        ({"python": None}, "the image has no Python"),
        ({"torch": None}, "the image has no torch"),
        ({"torch": "1.8.0a0+17f8c32"}, "the image has 1.8.0a0"),
        (
            {"torchvision": {"error": "undefined symbol"}},
            "importing torchvision fails: undefined symbol",
        ),
    ],
)
def test_img_python(facts: dict[str, Any], text: str) -> None:
    found = inside(facts)["img.python"]
    assert found.severity == "error" and text in found.what


def test_no_gpu_here() -> None:
    found = inside(driver=None)
    assert {found[id].severity for id in ("gpu.count", "gpu.driver", "gpu.alloc")} == {"unknown"}


@pytest.mark.parametrize(
    ("driver", "environ", "status"),
    [
        ("560.35.05", {}, "good"),
        ("535.104.05", {}, "good"),
        ("470.57.02", {"NVIDIA_PYTORCH_VERSION": "24.05"}, "warning"),
        ("418.10", {"NVIDIA_PYTORCH_VERSION": "24.05"}, "error"),
        ("418.10", {}, "warning"),  # nobody lists what its libraries know
        ("550.54.15", {"CUDA_VERSION": "99.1"}, "unknown"),
    ],
)
def test_gpu_driver(driver: str, environ: dict[str, str], status: str) -> None:
    found = inside({"environ": {**FACTS["environ"], **environ}}, driver=driver)["gpu.driver"]
    assert found.severity == status, found


def test_gpus_inside() -> None:
    assert inside(more={"count": 0})["gpu.count"].severity == "error"
    assert inside(gpus=4)["gpu.count"].severity == "unknown"
    broken = inside(more={"devices": [{"name": "H100", "error": "no kernel image is available"}]})
    assert broken["gpu.alloc"].severity == "error"


def test_env_masked() -> None:
    environ = {**FACTS["environ"], "NCCL_SOCKET_IFNAME": "eth0"}
    brought = inside({"environ": environ})["env.masked"]
    assert brought.severity == "warning" and "NCCL_SOCKET_IFNAME=eth0" in brought.what
    won = inside({"environ": environ}, env={"NCCL_SOCKET_IFNAME": "hsn0"})["env.masked"]
    assert won.severity == "good" and "values of the job are used" in won.what


def test_usersite_and_py_path(tmp_path: Path) -> None:
    more = {"user_folder": str(tmp_path)}
    assert "Python ignores" in inside(more=more)["usersite"].what
    assert inside(more=more, env={"PYTHONNOUSERSITE": ""})["usersite"].severity == "warning"
    foreign = inside({"torch_file": "/home/me/.local/lib/python3.10/site-packages/torch/x.py"})
    assert foreign["py.path"].severity == "warning"


# ---- the network ---------------------------------------------------------------------------------

IB = """\
n1:9:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB ib0:10.0.0.1<0>
n1:9:9 [0] NCCL INFO Using network IB
n1:9:9 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA
n1:9:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
"""
SOCKET = """\
n1:9:9 [0] NCCL INFO NET/IB : No device found.
n1:9:9 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>
n1:9:9 [0] NCCL INFO Using network Socket
n1:9:9 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/Socket/0
"""
OFI = """\
n1:9:9 [0] NCCL INFO NET/OFI Selected Provider is cxi (found 4 nics)
n1:9:9 [0] NCCL INFO Using network AWS Libfabric
"""


@pytest.mark.parametrize(
    ("text", "name", "ways"),
    [
        (IB, "IB", ["NET/IB/0/GDRDMA", "P2P/CUMEM"]),
        (SOCKET, "Socket", ["NET/Socket/0"]),
        (OFI, "AWS Libfabric", []),
        ("n1:9:9 [0] NCCL INFO Assigned NET plugin Socket to comm", "Socket", []),
        ("nothing", None, []),
    ],
)
def test_transport(text: str, name: str | None, ways: list[str]) -> None:
    assert network.transport(text.splitlines()) == (name, ways)


def measured(
    folder: Path, text: str, state: str = "finished", **facts: Any
) -> network.NetworkMeasurement:
    known = {"ranks": 4, "nodes": 2, "device": "cuda", "backend": "nccl", "join_seconds": 1.0}
    sizes = [{"bytes": 8, "seconds": 1e-5}, {"bytes": 10**9, "seconds": 0.1}]
    if state == "finished":
        (folder / "bandwidth.json").write_text(json.dumps({**known, "sizes": sizes, **facts}))
    (folder / "nccl-n1-1.log").write_text(text)
    status = RunStatus(str(folder), "x", "1", "slurm", state, "why", 1, None, None, None)
    return network.read(folder, status)


def test_net_nccl(tmp_path: Path) -> None:
    good = measured(tmp_path, IB)
    assert (good.finding.severity, good.finding.what) == ("good", "NCCL uses IB")
    assert good.rows[1]["bus_gigabytes_per_second"] == 15.0  # 10 GB/s times 2 * 3 / 4
    assert "15.000 GB/s" in good.to_text()
    slow = measured(tmp_path, SOCKET).finding
    assert slow.severity == "warning" and "NET/Socket" in slow.what
    silent = measured(tmp_path, SOCKET + "/sys/class/infiniband/mlx5_0\n").finding
    assert "although the nodes have a faster network" in silent.what
    assert measured(tmp_path, "", device="cpu", backend="gloo").finding.severity == "good"
    assert measured(tmp_path, SOCKET, nodes=1).finding.severity == "good"
    (tmp_path / "bandwidth.json").unlink()
    failed = measured(tmp_path, "", state="failed").finding
    assert failed.severity == "error" and "failed (why)" in failed.what


# ---- the command ---------------------------------------------------------------------------------


def test_every_id_is_in_the_catalogue_and_the_document() -> None:
    import re

    known = {check.id for check in catalogue.CATALOGUE}
    used = set()
    for module in (machine, job, data, image_inside, network, examine):
        text = Path(str(module.__file__)).read_text()
        used |= set(re.findall(r'(?:[Ff]inding|own_place|_wrong)\(\s*"([\w.]+)"', text))
    assert len(used) > 15
    assert used <= known
    document = REPOSITORY / "docs" / "doctor.md"
    assert catalogue.document(document.read_text()) == document.read_text()


def test_text_has_why_and_fix_where_something_is_wrong() -> None:
    text = to_text(
        [
            Finding("tmp", "good", "fine", "not shown", "nor this"),
            Finding("bind", "error", "/x does not exist", "it is needed", "create it"),
            Finding("net.if", "unknown", "only the nodes can check it"),
            Finding("net.ib", "unknown", "only the nodes can check it"),
        ]
    )
    assert text.splitlines() == [
        "ok    tmp     fine",
        "FAIL  bind    /x does not exist",
        "      it is needed",
        "      create it",
        "?     net.if, net.ib  only the nodes can check it",
        "1 good, 0 warning(s), 1 error(s), 2 not checked here",
    ]


def test_the_command_on_a_machine(host: StubHost) -> None:
    result = host.hpc_amp("doctor", "--json")

    found = {finding["id"]: finding for finding in json.loads(result.stdout)}
    assert found["rt.found"]["what"].startswith("apptainer version 1.4.5")
    assert found["site"]["what"].startswith("slurm (slurm)")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["absent.yaml"], "absent.yaml"),
        (["--network"], "--network needs CONFIG"),
        (["job.yaml", "--image", "x.sif"], "Give either CONFIG or --image"),
        (["--image", "docker://x"], "docker://x is a URI"),
    ],
)
def test_bad_input(host: StubHost, words: list[str], message: str) -> None:
    result = host.hpc_amp("doctor", *words)

    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert message in line


def test_the_job_of_a_program(host: StubHost) -> None:
    (host.work / "train.py").write_text("if True:\n    print(1)\n")

    result = host.hpc_amp("doctor", "train.py", "site=slurm", "job.gpus_per_node=0")

    assert result.returncode == 0, result.stdout + result.stderr
    assert "ok    program" in result.stdout
    shell = host.hpc_amp("shell", "--print", "train.py")  # which takes no program
    assert (shell.returncode, shell.stderr) == (
        2,
        "hpc-amp: train.py: this is a program, and not a job file; hpc-amp init train.py writes a "
        "job file for it\n",
    )


def test_a_job_with_two_faults(host: StubHost) -> None:
    host.write_job(
        {
            "name": "test", "site": "slurm", "run": ["true"],
            "container": {"image": "docker://ubuntu", "bind": ["no:such:bind:at"]},
        }
    )  # fmt: skip

    result = host.hpc_amp("doctor", "job.yaml", "--quick")

    assert result.returncode == 1
    failed = [line for line in result.stdout.splitlines() if line.startswith("FAIL")]
    assert len(failed) == 2
    assert "img.local" in failed[0] and "docker://ubuntu is a URI" in failed[0]
    assert "bind" in failed[1] and "is not a bind" in failed[1]
