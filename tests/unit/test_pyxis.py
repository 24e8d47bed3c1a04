"""Pyxis: what it refuses at `validate`, and whole launch scripts with the stand-in of its options
in front of the stub of srun."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from support.environment import REPOSITORY, working_directory
from support.stubs import StubHost, events, read_reports, report_command

from hpc_amp.containers import CONTAINERS
from hpc_amp.errors import ConfigError, UsageError
from hpc_amp.jobs.events import read_events

PYXIS = CONTAINERS.get("pyxis")()
NGC = "nvcr.io#nvidia/pytorch:25.06-py3"


def squashfs(path: Path, *environment: str) -> Path:
    """An image of the stand-in, with variables of its own."""
    content = "".join(f"{line}\n" for line in environment).encode()
    superblock = b"hsqs" + bytes(36) + (96 + len(content)).to_bytes(8, "little") + bytes(48)
    path.write_bytes(superblock + content)
    return path


@pytest.fixture
def pyxis(host: StubHost) -> StubHost:
    """A stub host whose srun has the options of Pyxis."""
    (host.bin / "srun").rename(host.bin / "srun-of-slurm")
    (host.bin / "srun").symlink_to(REPOSITORY / "tests" / "standins" / "pyxis")
    (host.bin / "registry").write_text(f"{NGC}\n")
    squashfs(host.folder / "image.sqsh", "FROM_IMAGE=image", "BOTH=image", "OMP_NUM_THREADS=64")
    return host


def job(host: StubHost, **more: Any) -> dict[str, Any]:
    container = {"runtime": "pyxis", "image": str(host.folder / "image.sqsh")}
    container |= {"python": sys.executable, **more.pop("container", {})}
    return {"run": ["true"], **more, "container": container}


# ---- what is refused -----------------------------------------------------------------------------

REFUSED = [
    (
        {"launch": "single"},
        "container.runtime: Pyxis is entered by options of srun, and the launcher is single; use "
        "launch: srun",
    ),
    (
        {"launch": "mpirun"},
        "container.runtime: Pyxis is entered by options of srun, and the launcher is mpirun; use "
        "launch: srun",
    ),
    (
        {"site": "pbs"},
        "container.runtime: Pyxis is entered by options of srun, and PBS has none; choose another "
        "runtime, or leave container.runtime out",
    ),
    (
        {"container": {"image": "docker://nvcr.io/nvidia/pytorch:25.06-py3"}},
        "container.image: docker://nvcr.io/nvidia/pytorch:25.06-py3 is a URI, and Pyxis needs a "
        f"squashfs file or an image of a registry; write image: {NGC}",
    ),
    (
        {"container": {"image": "nvcr.io/nvidia/pytorch:25.06-py3"}},
        "container.image: nvcr.io/nvidia/pytorch:25.06-py3: Enroot would search for the whole name "
        f"on Docker Hub, because '#' has to follow a registry's name; write image: {NGC}",
    ),
    (
        {"container": {"image": "Py Torch"}},
        "container.image: 'Py Torch' is neither a squashfs file nor the name of an image; write a "
        "path that ends in .sqsh, or registry#image:tag",
    ),
    ({"container": {"image": "no.sqsh"}}, "container.image: there is no image "),
    ({"container": {"image": "./"}}, " is a folder, and Pyxis needs a squashfs file"),
    ({"container": {"image": "../other.sqsh"}}, " is not a squashfs file: it is something else"),
    ({"container": {"image": "../short.sqsh"}}, " is cut off: 96 of 1000 bytes are here"),
    (
        {"container": {"bind": ["/tmp:/x:ro nosuid"]}},
        "'/tmp:/x:ro nosuid' cannot be mounted: its flags are words such as ro, joined by '+'",
    ),
    ({"container": {"bind": ["/tmp:/a b"]}}, "'/tmp:/a b' cannot be mounted: ',', ':', '$',"),
    (
        {"container": {"args": ["--container-workdir=/x"]}},
        "container.args: --container-workdir=/x cannot be used: hpc-amp sets it itself",
    ),
    (
        {"job": {"directives": ["--container-image=x"]}},
        "job.directives: '--container-image=x' would put the batch script itself into the "
        "container",
    ),
    (
        {"container": {"runtime": "pyxsi"}},
        "'pyxsi' is not one of auto, apptainer, ",
    ),
]


@pytest.mark.parametrize(("config", "message"), REFUSED)
def test_one_clear_line(pyxis: StubHost, config: dict[str, Any], message: str) -> None:
    (pyxis.folder / "short.sqsh").write_bytes(
        b"hsqs" + bytes(36) + (1000).to_bytes(8, "little") + bytes(48)
    )
    (pyxis.folder / "other.sqsh").write_bytes(bytes(100))

    with pytest.raises(ConfigError) as caught:
        pyxis.plan(job(pyxis, **config))

    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("image", [NGC, "pytorch/pytorch:2.7", "me@host:5000#a/b", "ubuntu"])
def test_images_of_registries_stay_as_they_are(pyxis: StubHost, image: str) -> None:
    plan = pyxis.plan(job(pyxis, container={"image": image}))

    assert plan.job.container.image == image


def test_a_file_becomes_absolute(pyxis: StubHost) -> None:
    squashfs(pyxis.work / "own.sqsh")

    plan = pyxis.plan(job(pyxis, container={"image": "own.sqsh", "bind": ["/tmp:/t:ro,nosuid"]}))

    assert plan.job.container.image == str(pyxis.work / "own.sqsh")
    mounts = next(word for word in PYXIS.options(plan) if word.startswith("--container-mounts="))
    assert "/tmp:/t:ro+nosuid," in mounts and f"{pyxis.work}:{pyxis.work}" in mounts


def test_defaults_give_way_to_what_the_user_says(pyxis: StubHost) -> None:
    args = ["--container-mount-home", "--container-writable"]

    words = PYXIS.options(pyxis.plan(job(pyxis, container={"args": args})))

    assert words[2:] == ["--no-container-remap-root", "--no-container-entrypoint", *args]


def test_no_executor_of_submitit(pyxis: StubHost) -> None:
    path = pyxis.write_job({"name": "a", "site": "slurm", **job(pyxis)})
    ended = pyxis.python("-c", f"import hpc_amp; hpc_amp.executor({str(path)!r})")

    assert "which submitit does not give" in ended.stderr


# ---- whole scripts -------------------------------------------------------------------------------


def test_every_rank_is_inside(pyxis: StubHost) -> None:
    reports = pyxis.work / "reports"
    config = job(
        pyxis,
        run=report_command(reports),
        job={
            "nodes": 2,
            "ranks_per_node": 2,
            "gpus_per_node": 2,
            "setup": "export BOTH=host FROM_HOST=host LD_LIBRARY_PATH=/host\n"
            "export PYXIS_CONTAINER_NAME=other PYTHONPATH=/of-the-host",
        },
        container={"env": {"BOTH": "job"}},
    )
    run_dir = pyxis.create(config)
    assert (
        PYXIS.host_code()
        == (run_dir / "src" / "hpc_amp" / "host" / "containers" / "pyxis.sh").read_text()
    )

    ended = pyxis.run(run_dir, nodes="n1,n2")

    assert ended.status == 0, ended.output
    assert f"container: Pyxis, {pyxis.folder}/image.sqsh" in ended.output
    found = read_reports(reports)
    assert len(found) == 4
    for rank, report in enumerate(found):
        environ = report.environ
        assert environ["RANK"] == str(rank) and environ["WORLD_SIZE"] == "4"
        assert environ["FROM_IMAGE"] == "image" and environ["FROM_HOST"] == "host"
        assert environ["BOTH"] == "job"  # the image's value won over the host's; the job's wins
        assert environ["OMP_NUM_THREADS"] == "1"
        assert environ["NVIDIA_VISIBLE_DEVICES"] == "all"
        assert not {"LD_LIBRARY_PATH", "PYXIS_CONTAINER_NAME"} & set(environ)
        assert "of-the-host" not in environ.get("PYTHONPATH", "")
    (call,) = pyxis.calls("srun-of-slurm")
    assert "--ntasks=4" in call and not any(word.startswith("--container") for word in call)


def test_no_gpu(pyxis: StubHost) -> None:
    reports = pyxis.work / "reports"
    ended = pyxis.run(pyxis.create(job(pyxis, run=report_command(reports))))

    assert ended.status == 0, ended.output
    assert read_reports(reports)[0].environ["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_preflight_looks_at_both_sides_of_the_container(pyxis: StubHost) -> None:
    run_dir = pyxis.create(job(pyxis), "launch.preflight=true")

    ended = pyxis.run(run_dir)

    assert ended.status == 0, ended.output
    assert (run_dir / "attempts" / "1" / "preflight.json").exists()
    outside, inside, ranks = pyxis.calls("srun-of-slurm")
    assert "--inside" not in outside and "--inside" in inside and "--inside" in ranks
    assert any(word.endswith("/preflight.sh") for word in outside)


def test_preflight_says_why_the_container_does_not_start(pyxis: StubHost) -> None:
    config = job(pyxis, container={"image": "nvcr.io#nvidia/nothing:1"})
    run_dir = pyxis.create(config, "launch.preflight=true")

    ended = pyxis.run(run_dir)

    assert ended.status == 2
    assert events(run_dir) == ["started", "failed"]
    reason = str(read_events(run_dir)[-1]["reason"])
    assert "preflight: rt.start: the container does not start" in reason
    assert "pyxis: failed to import docker image" in reason


def test_preflight_stops_at_a_missing_mount(pyxis: StubHost) -> None:
    (pyxis.work / "data").mkdir()
    config = job(pyxis, container={"bind": [str(pyxis.work / "data") + ":/data"]})
    run_dir = pyxis.create(config, "launch.preflight=true")
    (pyxis.work / "data").rmdir()

    ended = pyxis.run(run_dir)

    assert ended.status == 2
    assert f"{pyxis.work}/data is to be bound into the container" in ended.output
    assert len(pyxis.calls("srun-of-slurm")) == 1


def test_torchrun_starts_one_container_a_node(pyxis: StubHost) -> None:
    agent = pyxis.work / "agent"
    agent.write_text('#!/bin/sh\necho "agent $*, $FROM_IMAGE"\n')
    agent.chmod(0o755)
    config = job(
        pyxis,
        launch="torchrun",
        job={"nodes": 2, "ranks_per_node": 2},
        container={"python": str(agent)},
    )

    ended = pyxis.run(pyxis.create(config), nodes="n1,n2")

    lines = [line for line in ended.output.splitlines() if line.startswith("agent ")]
    assert len(lines) == 2, ended.output
    for number, line in enumerate(sorted(lines, key=lambda text: text.split("--node-rank=")[1])):
        assert "--nproc-per-node=2 " in line and f"--node-rank={number} " in line
        assert line.endswith(", image")


# ---- shell and doctor ----------------------------------------------------------------------------


def test_the_line_to_copy(pyxis: StubHost) -> None:
    path = pyxis.write_job({"name": "a", "site": "slurm", **job(pyxis)})

    ended = pyxis.hpc_amp("shell", "--print", str(path))

    line = ended.stdout.splitlines()[-1]
    assert line.startswith(
        f"srun --overlap --nodes=1 --ntasks=1 --mpi=none --pty --container-image={pyxis.folder}"
    ), ended.stderr
    assert line.endswith(" bash --norc")


def test_a_session_is_a_step_beside_its_shell(pyxis: StubHost) -> None:
    path = pyxis.write_job({"name": "a", "site": "slurm", **job(pyxis)})
    inside = {"SLURM_JOB_ID": "42", "SLURMD_NODENAME": "n1", "SLURM_JOB_NODELIST": "n1"}

    ended = pyxis.hpc_amp("shell", str(path), "--", "printenv", "FROM_IMAGE", **inside)

    assert (ended.returncode, ended.stdout) == (0, "image\n"), ended.stderr
    (call,) = pyxis.calls("srun-of-slurm")
    assert {"--overlap", "--nodes=1", "--ntasks=1", "--nodelist=n1"} <= set(call)


def test_doctor(pyxis: StubHost) -> None:
    for options, status in (
        (["--container-writable"], "good"),
        (["--container-mount-home", "--no-container-mount-home"], "error"),
    ):
        (found,) = PYXIS.check_options(options, ranks=2)
        assert (found.id, found.severity) == ("rt.flags", status)
    path = pyxis.write_job({"name": "a", "site": "slurm", **job(pyxis)})

    ended = pyxis.hpc_amp("doctor", str(path))

    assert "Traceback" not in ended.stderr
    assert "hpc-amp does not look into images of Pyxis" in ended.stdout


def test_hpc_amp_container_says_that_it_cannot(pyxis: StubHost) -> None:
    with pytest.raises(UsageError, match="hpc-amp pulls no images for Pyxis; use the runtime's"):
        PYXIS.pull(site=None, say=print, uri="docker://x")  # type: ignore[arg-type]


def test_a_squashfs_file_is_told_by_its_bytes(tmp_path: Path) -> None:
    image = PYXIS.read_image(str(squashfs(tmp_path / "a.sqsh")))

    assert image is not None and (image.kind, image.size) == ("squashfs", 96)
    with working_directory(tmp_path):
        assert PYXIS.is_path("a.sqsh") and PYXIS.is_path("./a") and not PYXIS.is_path("a")
    assert os.path.isabs(str(image.path))
