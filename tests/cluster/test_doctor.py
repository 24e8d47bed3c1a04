"""What keeps a job from running on a real cluster is prevented, or reported by its name before any
rank starts: by `hpc-amp doctor` on the login node, or by the job's preflight on its nodes."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import commands
from support.cluster import Cluster
from support.images import unpack

from hpc_amp.doctor.machine import check_tmp

pytestmark = [pytest.mark.cluster, pytest.mark.slurm]

RANKS = 2
# The image's Python, which has no torch to be imported.
OWN_PYTHON = "container.python=/usr/bin/python3"
# More than the one rank on each of two nodes that most jobs here have.
TWO_EACH = "job.ranks_per_node=2"
# Proof of a rank that started: its environment, by rank.
PROGRAM = """
import json, os, sys
with open(f"rank-{os.environ['RANK']}.json", "w") as out:
    json.dump({"environ": dict(os.environ), "path": sys.path}, out)
"""


class Desk:
    """A folder to submit from."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        (folder / "program.py").write_text(PROGRAM)
        (folder / "job.yaml").write_text(
            yaml.safe_dump(
                {
                    "name": "doctored",
                    "job": {
                        "nodes": 2, "ranks_per_node": 1, "gpus_per_node": 0, "walltime": "5m",
                        "stop_margin": "10s",
                    },
                    "run": ["python", "program.py"],
                }
            )
        )  # fmt: skip

    def doctor(self, *words: str, status: int) -> dict[str, dict[str, Any]]:
        """The findings by id: of several the worst."""
        shown = self.cluster.hpc_amp("doctor", *words, "--json", cwd=self.folder, check=False)
        assert shown.returncode == status, shown.stdout + shown.stderr
        worst: dict[str, dict[str, Any]] = {}
        order = ["error", "warning", "unknown", "good"]
        for finding in json.loads(shown.stdout):
            before = worst.get(finding["id"])
            if before is None or order.index(finding["severity"]) < order.index(before["severity"]):
                worst[finding["id"]] = finding
        return worst

    def doctor_job(self, *overrides: str, status: int) -> dict[str, dict[str, Any]]:
        return self.doctor("job.yaml", *self.cluster.overrides, *overrides, status=status)

    def submit(self, *overrides: str) -> tuple[str, dict[str, Any]]:
        """Log and status of a job that has ended."""
        shown = self.cluster.hpc_amp(
            *("submit", "job.yaml", *self.cluster.overrides, *overrides, "--follow", "--json"),
            cwd=self.folder,
            check=False,
        )
        lines = shown.stdout.splitlines()
        assert len(lines) == 2, shown.stdout + shown.stderr
        return shown.stderr, json.loads(lines[1])

    def patiently(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`hpc-amp`, which waits for an image as long as it takes."""
        environ = self.cluster.environ
        return commands.python(*commands.PATIENT, *words, cwd=self.folder, environ=environ)

    def refused(self, *overrides: str) -> str:
        """What is said of a job that is not submitted."""
        shown = self.patiently("submit", "job.yaml", *self.cluster.overrides, *overrides)
        assert shown.returncode == 2, shown.stdout + shown.stderr
        return shown.stderr

    @property
    def ranks(self) -> list[dict[str, Any]]:
        """What the ranks said that started."""
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("rank-*.json"))]

    def binds(self, *more: str) -> str:
        """An override that adds binds to those of this Python."""
        return f"container.bind={json.dumps([*self.cluster.binds, *more])}"

    def is_stopped(self, id: str, *overrides: str) -> dict[str, Any]:
        """A job whose preflight ends it with this finding, before any rank; the finding."""
        log, ended = self.submit(*overrides)
        assert ended["state"] == "failed", log
        assert ended["reason"].startswith(f"preflight: {id}: "), log
        assert self.ranks == []
        assert f"hpc-amp: preflight: {id}: " in log
        return self.reported(ended, id, "error")

    def reported(self, ended: dict[str, Any], id: str, status: str) -> dict[str, Any]:
        """The finding of this id in the reports of the nodes."""
        folder = Path(ended["run_dir"]) / "attempts" / "1"
        files = [folder / "preflight.json", *sorted(folder.glob("preflight-*.json"))]
        for path in files:
            for finding in json.loads(path.read_text())["findings"] if path.exists() else []:
                if (finding["id"], finding["severity"]) == (id, status):
                    return dict(finding)
        pytest.fail(f"no {status} {id} in {[path.read_text() for path in files if path.exists()]}")


@pytest.fixture
def desk(cluster: Cluster, tmp_path: Path) -> Desk:
    return Desk(cluster, tmp_path)


@pytest.fixture(scope="module")
def own_image(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image with an environment of its own, as Docker's become it."""
    folder = tmp_path_factory.mktemp("images") / "own"
    # `apptainer build --sandbox` wants to give files away, which not every root may.
    copy = "tar -c --one-file-system -C / . | tar -x --no-same-owner -C /copy"
    folder.mkdir()
    inside = [cluster.image, "sh", "-c", copy]
    cluster.run("apptainer", "exec", "-B", f"{folder}:/copy", *inside, cwd=folder.parent)
    (folder / ".singularity.d" / "env" / "10-docker2singularity.sh").write_text(
        "#!/bin/sh\n"
        'export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-"ens77"}"\n'
        'export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-"/opt/own/lib"}"\n'
    )
    (folder / "opt" / "own" / "lib").mkdir(parents=True)
    return folder


def test_all_is_well(desk: Desk) -> None:
    found = desk.doctor_job(TWO_EACH, status=0)
    log, ended = desk.submit(TWO_EACH)

    assert {f["id"] for f in found.values() if f["severity"] == "error"} == set()
    assert found["rt.found"]["what"].startswith("apptainer version")
    assert found["img.arch"]["severity"] == "good"
    assert found["img.meta"]["what"].startswith("torch ")
    assert found["gpu.alloc"]["severity"] == "unknown"  # rather than good
    assert found["net.name"]["severity"] == "unknown"
    assert ended["state"] == "finished", log
    assert len(desk.ranks) == 4
    report = json.loads((Path(ended["run_dir"]) / "attempts" / "1" / "preflight.json").read_text())
    assert (report["failed"], len(report["nodes"])) == ("", 2)
    good = {finding["id"] for finding in report["findings"] if finding["severity"] == "good"}
    assert {"rank", "net.name", "net.port", "net.reach", "clock", "code", "bind", "tmp"} <= good


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_other_launchers(desk: Desk, warm_cluster: Cluster, launcher: str) -> None:
    root = '{OMPI_ALLOW_RUN_AS_ROOT: "1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM: "1"}'
    site = desk.folder / "other.yaml"
    site.write_text(f"scheduler: slurm\nenv: {root}\n")

    log, ended = desk.submit(
        *warm_cluster.overrides, f"launch.method={launcher}", f"site={site}", TWO_EACH
    )

    assert ended["state"] == "finished", log
    assert "preflight: 2 node(s) in" in log
    assert len(desk.ranks) == 4


def test_it_can_be_switched_off(desk: Desk) -> None:
    log, ended = desk.submit("launch.preflight=false")

    assert ended["state"] == "finished", log
    assert "preflight" not in log
    assert not list((Path(ended["run_dir"]) / "attempts" / "1").glob("preflight*"))


# ---- the container -------------------------------------------------------------------------------


def test_a_wrong_bind(desk: Desk) -> None:
    found = desk.doctor_job(desk.binds("/no/such/folder"), OWN_PYTHON, status=0)

    assert found["bind"]["severity"] == "warning"  # it may exist on the nodes
    assert "/no/such/folder" in found["bind"]["what"]


def test_a_bind_that_goes_away_before_the_job(desk: Desk) -> None:
    folder = desk.folder / "short-lived"
    folder.mkdir()

    finding = desk.is_stopped("bind", desk.binds(str(folder)), f"job.setup=rmdir '{folder}'")

    assert str(folder) in finding["what"]


def test_a_bind_that_one_node_lacks(desk: Desk) -> None:
    """Nodes of the test cluster see the same files, except for those that the kernel makes for each
    network. The machine itself has this one."""
    name = "hpcamp0-n1"
    inside = ["nsenter", "--net=/run/netns/n1", "ip", "link"]
    subprocess.run([*inside, "add", name, "type", "veth", "peer", "name", "other"], check=True)
    try:
        finding = desk.is_stopped("bind", desk.binds(f"/proc/net/dev_snmp6/{name}:/mnt/file"),
                                  'job.directives=["--nodelist=n1,n2"]')  # fmt: skip
    finally:
        subprocess.run([*inside, "del", name], check=True)

    assert finding["where"] == "n2"
    assert f"/proc/net/dev_snmp6/{name}" in finding["what"]


def test_an_unreadable_image(desk: Desk) -> None:
    """Another user's. root may read everything, so it gives up the right to. A real other user
    would not find Python where that is in root's home."""
    image = desk.folder / "private.sif"
    image.write_bytes(Path(desk.cluster.image).read_bytes()[:4096])
    image.chmod(0o600)
    os.chown(image, 65534, 65534)

    shown = subprocess.run(
        [
            *("setpriv", "--bounding-set=-dac_override,-dac_read_search", sys.executable, "-m"),
            *("hpc_amp", "doctor", "job.yaml", "--json", *desk.cluster.overrides),
            f"container.image={image}",
        ],
        cwd=desk.folder,
        env=desk.cluster.environ,
        text=True, capture_output=True, timeout=300,
    )  # fmt: skip

    assert shown.returncode == 1 and shown.stdout, shown.stdout + shown.stderr
    (finding,) = [entry for entry in json.loads(shown.stdout) if entry["id"] == "img.local"]
    assert finding["severity"] == "error"
    assert str(image) in finding["what"] and "cannot be read" in finding["what"]


def test_a_uri_as_image(desk: Desk) -> None:
    uri = "docker://nvcr.io/nvidia/pytorch:25.06-py3"

    found = desk.doctor_job(f"container.image={uri}", status=1)

    assert found["img.local"]["severity"] == "error"
    assert f"{uri} is a URI" in found["img.local"]["what"]
    assert "pull" in found["img.local"]["fix"]


def make_foreign(image: Path) -> None:
    """Say arm64 where a SIF file says its architecture: in the head, and for each partition."""
    with image.open("r+b") as file:
        head = file.read(128)
        (table,) = struct.unpack_from("<q", head, 96)
        file.seek(45)
        file.write(b"04")
        for index in range(48):
            start = table + index * 585
            file.seek(start)
            if int.from_bytes(file.read(4), "little") == 0x4004:
                file.seek(start + 201 + 8)
                file.write(b"04")


def test_an_image_for_another_architecture(desk: Desk) -> None:
    image = desk.folder / "arm64.sif"
    shutil.copy(desk.cluster.image, image)
    make_foreign(image)

    found = desk.doctor_job(f"container.image={image}", status=1)
    refused = desk.refused(f"container.image={image}")
    finding = desk.is_stopped("img.arch", f"container.image={image}", "--no-check")

    assert found["img.arch"]["severity"] == "error"
    assert "arm64" in found["img.arch"]["what"] and "amd64" in found["img.arch"]["what"]
    assert refused.startswith(f"hpc-amp: the image {image} is for arm64, and the nodes are amd64; ")
    assert "arm64" in finding["what"]


def test_an_image_without_torch_is_refused(desk: Desk) -> None:
    """Until it has one, without which the preflight would end the job."""
    image, packages = desk.folder / "root", "opt/own/packages"
    unpack(Path(desk.cluster.image), image)
    (desk.folder / "job.yaml").write_text("name: untrained\ntrain: {data: synthetic}\n")
    job = ["job.gpus_per_node=0", f"container.image={image}", "container.bind=[]"]
    job += ["container.python=python3", f"container.env.PYTHONPATH=/{packages}"]

    said = desk.refused(*job)
    assert said.startswith(f"hpc-amp: python3 in the image {image} has no torch, which training ")
    assert "has no torch" in desk.is_stopped("img.python", *job, "--no-check")["what"]
    assert desk.refused(*job, "container.python=/opt/own") == (
        f"hpc-amp: the image {image} has no /opt/own; use another image (hpc-amp container list), "
        "or set container.python to another Python (--no-check submits the job all the same)\n"
    )

    torch = image / packages / "torch"
    torch.mkdir(parents=True)
    (torch / "__init__.py").touch()
    (torch / "version.py").write_text("__version__ = '2.0.1'\n")
    assert "has torch 2.0.1, and training needs 2.1 or newer; " in desk.refused(*job)
    (torch / "version.py").write_text("__version__ = '2.6.0'\n")
    shown = desk.patiently("validate", "job.yaml", "site=slurm", *job)
    assert (shown.returncode, shown.stderr) == (0, "")


# ---- folders -------------------------------------------------------------------------------------


@pytest.fixture
def full_folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "full"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=True)
    try:
        (folder / "left-behind").write_bytes(bytes(60 * 1024))
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_tmp(desk: Desk, full_folder: Path) -> None:
    finding = desk.is_stopped("tmp", desk.binds(f"{full_folder}:/tmp"))

    assert finding["what"] == "/tmp is full"
    assert finding["where"] == "every node"


def test_a_full_tmp_of_the_login_node(full_folder: Path) -> None:
    (finding,) = check_tmp(full_folder)

    assert finding.severity == "error"
    assert "is not writable: No space left on device" in finding.what


# ---- the environment -----------------------------------------------------------------------------


def test_python_is_not_polluted(desk: Desk) -> None:
    """By none of the ways that are known: PYTHONPATH, the home folder, each from shell files."""
    path, base = desk.folder / "path", desk.folder / "base"
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for folder in (path, base / "lib" / version / "site-packages"):
        (folder / "torch").mkdir(parents=True)
        (folder / "torch" / "__init__.py").write_text("raise SystemExit('the wrong torch')\n")
    setup = f"export PYTHONPATH='{path}' PYTHONUSERBASE='{base}'"

    log, ended = desk.submit(f"job.setup={setup}")

    assert ended["state"] == "finished", log
    assert desk.reported(ended, "usersite", "good")["what"].startswith(
        "Python ignores the packages"
    )
    for rank in desk.ranks:
        assert not [entry for entry in rank["path"] if str(path) in entry or str(base) in entry]


def test_pollution_that_was_asked_for_is_reported(desk: Desk) -> None:
    path = desk.folder / "path"
    (path / "torch").mkdir(parents=True)
    (path / "torch" / "__init__.py").touch()

    _, ended = desk.submit(f"container.env={{PYTHONPATH: '{path}'}}")

    finding = desk.reported(ended, "py.path", "warning")
    assert f"PYTHONPATH replaces packages of the image: torch ({path})" in finding["what"]


def test_an_image_that_sets_nccl_socket_ifname(desk: Desk, own_image: Path) -> None:
    log, ended = desk.submit(f"container.image={own_image}")

    assert "the image itself sets NCCL_SOCKET_IFNAME=ens77" in log
    finding = desk.reported(ended, "net.if", "warning")
    assert (
        "NCCL_SOCKET_IFNAME=ens77 (from the image) selects no interface of this node"
        in finding["what"]
    )
    assert log.index("NCCL_SOCKET_IFNAME=ens77") < log.index("attempt 1 of job")
    found = desk.doctor_job(f"container.image={own_image}", OWN_PYTHON, status=0)
    assert "NCCL_SOCKET_IFNAME=ens77" in found["env.masked"]["what"]


def test_it_does_not_mask_what_the_job_sets(desk: Desk, own_image: Path) -> None:
    wanted = "container.env={NCCL_SOCKET_IFNAME: eth0}"

    log, ended = desk.submit(f"container.image={own_image}", wanted)

    assert ended["state"] == "finished", log
    assert [rank["environ"]["NCCL_SOCKET_IFNAME"] for rank in desk.ranks] == ["eth0"] * RANKS
    assert "eth0" in desk.reported(ended, "net.if", "good")["what"]
    found = desk.doctor_job(f"container.image={own_image}", wanted, OWN_PYTHON, status=0)
    assert "the values of the job are used" in found["env.masked"]["what"]


def test_what_setup_exports_for_an_image(desk: Desk, own_image: Path) -> None:
    """A value that the image masks is reported. A library path does not mask the image's."""
    setup = "export NCCL_SOCKET_IFNAME=eth0 APPTAINERENV_LD_LIBRARY_PATH=/opt/site/lib"

    log, ended = desk.submit(f"container.image={own_image}", f"job.setup={setup}")

    assert ended["state"] == "finished", log
    assert "NCCL_SOCKET_IFNAME is eth0 outside and ens77 in the container" in log
    for rank in desk.ranks:
        folders = rank["environ"]["LD_LIBRARY_PATH"].split(":")
        assert folders[:2] == ["/opt/site/lib", "/opt/own/lib"]
    assert desk.reported(ended, "env.libs", "good")


def test_a_masked_library_path_is_reported(desk: Desk, own_image: Path) -> None:
    mask = 'container.args=["--env", "LD_LIBRARY_PATH=/opt/site/lib"]'

    log, ended = desk.submit(f"container.image={own_image}", mask)

    finding = desk.reported(ended, "env.libs", "warning")
    assert (
        "LD_LIBRARY_PATH does not have these folders of the image: /opt/own/lib" in finding["what"]
    )
    assert log.index("env.libs") < log.index("attempt 1 of job")


def test_hidden_launcher_variables(desk: Desk) -> None:
    found = desk.doctor_job('container.args=["--cleanenv"]', OWN_PYTHON, status=1)
    desk.is_stopped("rank", 'container.args=["--cleanenv"]')

    assert "--cleanenv" in found["rt.flags"]["what"]


# ---- the network ---------------------------------------------------------------------------------


def test_the_network_between_two_nodes(desk: Desk, warm_cluster: Cluster) -> None:
    shown = desk.cluster.hpc_amp(
        *("doctor", "job.yaml", *warm_cluster.overrides, "--network", "--json"),
        cwd=desk.folder,
        timeout=600,
    )

    result = json.loads(shown.stdout)
    assert (result["ranks"], result["nodes"], result["backend"]) == (2, 2, "gloo")
    assert result["finding"]["severity"] == "good"
    sizes = [row["bytes"] for row in result["sizes"]]
    assert sizes == sorted(sizes) and sizes[-1] == 2**24
    assert all(row["microseconds"] > 0 for row in result["sizes"])
    bandwidths = [row["bus_gigabytes_per_second"] for row in result["sizes"]]
    assert bandwidths[-1] > bandwidths[0]


def test_a_network_that_does_not_work(desk: Desk) -> None:
    shown = desk.cluster.hpc_amp(
        *("doctor", "job.yaml", *desk.cluster.overrides, "--network", "--json"),
        "container.env={GLOO_SOCKET_IFNAME: hsn0}",
        cwd=desk.folder,
        check=False,
    )

    assert shown.returncode == 1, shown.stdout + shown.stderr
    finding = json.loads(shown.stdout)["finding"]
    assert "GLOO_SOCKET_IFNAME=hsn0" in finding["what"]
