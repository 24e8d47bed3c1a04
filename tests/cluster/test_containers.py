"""`hpc-amp container` with the real Apptainer. Registries are programs on this machine.

What is real: Apptainer, the images, Debian's packages, torch in the Debian image, Slurm. What is
not: the NGC image, which is a small system with a torch that cannot compute; its pip is real.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import Cluster
from support.environment import REPOSITORY
from support.images import (
    AS_USER,
    build,
    copy_package,
    debian_image,
    for_other_architecture,
    small_layer,
    tar_as_root,
    unpack,
    wheel,
)
from support.registry import Registry

pytestmark = pytest.mark.cluster

CONFIG = str(REPOSITORY / "configs" / "cifar_resnet.yaml")
JOB = [
    "site=slurm",
    "job.nodes=2",
    "job.gpus_per_node=1",
    "job.walltime=10m",
    "job.stop_margin=1m",
    "train.precision=fp32",
    "train.data.download=false",
    "train.data.synthetic={train: 512, test: 99, image_size: 16}",
    "train.batch_size=16",
    "train.max_steps=8",
]


@pytest.fixture(scope="module")
def debian(cluster: Cluster) -> Path:
    return debian_image(cluster)


@pytest.fixture(scope="module")
def sif(cluster: Cluster) -> Path:
    """A whole image that is quick to copy."""
    return Path(cluster.image)


# ---- the Debian image ----------------------------------------------------------------------------


def test_the_debian_image_passes_its_test(cluster: Cluster, debian: Path, tmp_path: Path) -> None:
    shown = cluster.run("apptainer", "test", str(debian), cwd=tmp_path)
    assert "torch 2." in shown.stdout


def test_the_debian_image_is_described(cluster: Cluster, debian: Path, tmp_path: Path) -> None:
    facts = json.loads(
        cluster.hpc_amp("container", "inspect", str(debian), "--json", cwd=tmp_path).stdout
    )
    assert facts["usable"] is True
    assert facts["torch"].startswith("2.")
    assert facts["openmpi"].startswith("5.")
    assert facts["cuda"] is None
    assert facts["traps"] == {}
    assert facts["labels"]["org.hpc-amp.definition"] == "debian-cpu"
    lacks = {lack["what"]: lack["needed"] for lack in facts["lacks"]}
    assert lacks == {"CUDA": False, "tensorboard": False, "mpi4py": False}


@pytest.mark.slurm
def test_the_main_job_runs_in_the_debian_image(
    cluster: Cluster, debian: Path, tmp_path: Path
) -> None:
    """With the Python and the torch of the image, and nothing of ours bound into it but the run."""
    ended = cluster.hpc_amp(
        "submit", CONFIG, *JOB, f"container.image={debian}", "--follow", "--json", cwd=tmp_path
    )
    facts = json.loads(ended.stdout.splitlines()[-1])
    summary = facts["summary"]
    assert (summary["outcome"], summary["world_size"], summary["nodes"]) == ("finished", 2, 2)
    assert summary["steps"] == 8
    run_dir = Path(facts["run_dir"])
    script = (run_dir / "launch.sh").read_text()
    assert "[python]=python3 " in script
    assert sys.prefix not in script
    assert "torch 2.6.0+debian" in (run_dir / "logs" / "job.log").read_text()


# ---- NVIDIA's image, stood in for ----------------------------------------------------------------

FAKE_TORCH = """
import sys, types
__version__ = "2.8.0a0+5228986c39.nv25.6"
version = types.SimpleNamespace(cuda="12.9", hip=None)
distributed = sys.modules["torch.distributed"] = types.ModuleType("torch.distributed")
distributed.is_available = distributed.is_gloo_available = lambda: True
"""
NGC_ENVIRON = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "NVIDIA_PYTORCH_VERSION": "25.06",
    "CUDA_VERSION": "12.9.1.010",
    "CUDA_DRIVER_VERSION": "575.57.08",
    "OPENMPI_VERSION": "4.1.7",
    "NCCL_VERSION": "2.27.3",
    "NCCL_NET_PLUGIN": "none",
    "BASH_ENV": "/etc/bash.bashrc",
    "PIP_CONSTRAINT": "/etc/pip/constraint.txt",
}


@pytest.fixture(scope="module")
def ngc(
    cluster: Cluster, sif: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Registry]:
    """A registry with `nvidia/pytorch:25.06-py3`, which demands NVIDIA's login, and a folder of
    wheels."""
    folder = tmp_path_factory.mktemp("ngc")
    root = folder / "root"
    unpack(sif, root)
    for spare in (
        "usr/share",
        "var/lib",
        "var/cache",
        "usr/sbin",
        "usr/lib/*/perl*",
        "usr/lib/*/gconv",
    ):
        for place in root.glob(spare):
            shutil.rmtree(place)
    (packages,) = root.glob("usr/lib/python3/dist-packages")
    copy_package("pip", packages)
    (packages / "torch" / "lib").mkdir(parents=True)
    (packages / "torch" / "__init__.py").write_text(FAKE_TORCH)
    (packages / "torch" / "version.py").write_text("__version__ = '2.8.0a0'\n")
    (packages / "torch" / "lib" / "libtorch.so").write_bytes(bytes(100_000))
    info = packages / "torch-2.8.0a0+5228986c39.nv25.6.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.8.0a0+5228986c39.nv25.6\n"
    )
    (info / "RECORD").write_text("torch/__init__.py,,\ntorch/version.py,,\n")
    (info / "INSTALLER").write_text("pip\n")
    (root / "etc" / "pip").mkdir()
    (root / "etc" / "pip" / "constraint.txt").write_text("pinned==1.0\n")
    wheels = [
        wheel(folder, "pinned", "1.0", {"pinned.py": "x = 1"}),
        wheel(folder, "pinned", "2.0", {"pinned.py": "x = 2"}),
        wheel(folder, "torch", "2.8.0", {"torch/__init__.py": "", "torch/version.py": ""}),
        wheel(folder, "good", "1.0", {"good.py": ""}, ["torch>=2.7", "pinned"]),
        wheel(folder, "greedy", "1.0", {"greedy.py": ""}, ["torch>=2.8"]),
        wheel(folder, "shadow", "1.0", {"shadow.py": "", "torch/__init__.py": FAKE_TORCH}),
    ]
    with Registry(login=("$oauthtoken", "nvapi-t3st")) as registry:
        registry.add_image(
            "nvidia/pytorch", "25.06-py3", tar_as_root(root, folder / "layer.tar"),
            environ=NGC_ENVIRON,
        )  # fmt: skip
        registry.wheels = folder  # type: ignore[attr-defined]
        assert all(path.exists() for path in wheels)
        yield registry


def build_ngc(
    cluster: Cluster, ngc: Registry, folder: Path, *packages: str, check: bool = True
) -> tuple[subprocess.CompletedProcess[str], Path]:
    options = [word for package in packages for word in ("--pip", package)]
    base = f"docker://{ngc.host}/nvidia/pytorch:25.06-py3"
    cluster.hpc_amp("container", "def", "ngc", "--base", base, *options, "-o", "x.def", cwd=folder)
    # pip's index is a folder here: what a user would give a site without Internet.
    more = {
        "APPTAINERENV_PIP_FIND_LINKS": str(ngc.wheels),  # type: ignore[attr-defined]
        "APPTAINERENV_PIP_NO_INDEX": "1",
        "APPTAINER_DOCKER_USERNAME": "$oauthtoken",
        "APPTAINER_DOCKER_PASSWORD": "nvapi-t3st",
    }
    wider = Cluster(cluster.image, cluster.binds, {**cluster.environ, **more})
    # The stand-in's torch cannot compute, which is what %test would find.
    ended = build(
        wider, folder / "x.def", folder / "x.sif", folder, "--fakeroot", "--arg=--notest",
        f"--arg=--bind={ngc.wheels}", check=check,
    )  # fmt: skip
    return ended, folder / "x.sif"


def test_packages_are_added_and_nvidias_torch_stays(
    cluster: Cluster, ngc: Registry, tmp_path: Path
) -> None:
    ended, image = build_ngc(cluster, ngc, tmp_path, "good")
    said = ended.stdout + ended.stderr
    assert "Successfully installed good-1.0 pinned-1.0" in said, "the image's own pins hold"
    sums = cluster.run(
        *("apptainer", "exec", str(image), "sha256sum", "--check", "/opt/hpc-amp/torch.sha256"),
        cwd=tmp_path,
    ).stdout
    assert sums.count(": OK\n") == 6
    assert "torch/lib/libtorch.so: OK" in sums
    assert "nv25.6.dist-info/RECORD: OK" in sums
    facts = json.loads(
        cluster.hpc_amp("container", "inspect", str(image), "--json", cwd=tmp_path).stdout
    )
    expected = {
        "torch": "2.8.0a0+5228986c39.nv25.6",
        "ngc_release": "25.06",
        "cuda": "12.9.1.010",
        "driver_native": "575.57.08",
        "driver_floor": "525",
        "openmpi": "4.1.7",
        "nccl": "2.27.3",
    }
    assert {name: facts[name] for name in expected} == expected
    assert facts["masks"]["NCCL_NET_PLUGIN"] == "none"
    assert {"BASH_ENV", "PIP_CONSTRAINT"} <= set(facts["traps"])
    secret = b"nvapi-t3st"
    for path in (image, tmp_path / "x.def"):
        assert secret not in path.read_bytes()
    assert secret.decode() not in said


@pytest.mark.parametrize(
    ("package", "cause"),
    [("greedy", "a package wants another torch"), ("shadow", "a package replaced files of")],
)
def test_a_package_that_would_replace_torch_fails_the_build(
    cluster: Cluster, ngc: Registry, tmp_path: Path, package: str, cause: str
) -> None:
    ended, image = build_ngc(cluster, ngc, tmp_path, package, check=False)
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith(f"hpc-amp: the build of {tmp_path}/x.def failed (status 255): ")
    assert cause in last
    assert not image.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"x.def"}


def test_a_place_without_room_is_told_by_name(
    cluster: Cluster, ngc: Registry, tmp_path: Path
) -> None:
    """A real file system of 8 MB for temporary files: found before, and where the size was said to
    be less, when it is full."""
    small = tmp_path / "small"
    small.mkdir()
    cluster.run("mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(small), cwd=tmp_path)
    try:
        cluster.hpc_amp(
            *("container", "def", "debian", "-o", "x.def", "--base"),
            f"docker://{ngc.host}/nvidia/pytorch:25.06-py3",
            cwd=tmp_path,
        )
        environ = {
            **cluster.environ,
            "APPTAINER_DOCKER_USERNAME": "$oauthtoken",
            "APPTAINER_DOCKER_PASSWORD": "nvapi-t3st",
        }
        wider = Cluster(cluster.image, cluster.binds, environ)
        arguments = (tmp_path / "x.def", tmp_path / "x.sif", tmp_path, f"--tmp-dir={small}")
        before = build(wider, *arguments, check=False)
        assert before.returncode == 1
        assert f"{small} has 8 MiB free, and the build needs about 3.0 GiB there" in before.stderr
        later = build(wider, *arguments, "--fakeroot", "--size=1MiB", check=False)
        assert later.returncode == 1
        assert "a file system is full, or a quota is exceeded" in later.stderr.splitlines()[-1]
        assert not (tmp_path / "x.sif").exists()
        assert list(small.iterdir()) == []
    finally:
        cluster.run("umount", str(small), cwd=tmp_path)


# ---- pull ----------------------------------------------------------------------------------------


def pull(
    cluster: Cluster, cwd: Path, *arguments: str, check: bool = True, **environ: str
) -> subprocess.CompletedProcess[str]:
    wider = Cluster(cluster.image, cluster.binds, {**cluster.environ, **environ})
    return wider.hpc_amp(
        *("container", "pull", *arguments, "--site=local", "--arg=--no-https"),
        cwd=cwd,
        check=check,
    )


@pytest.fixture
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    folder = tmp_path_factory.mktemp("small")
    with Registry() as registry:
        registry.add_image("team/small", "1", small_layer(folder / "layer.tar"))
        yield registry


def test_a_root_without_all_capabilities_is_told_what_to_do(
    cluster: Cluster, small: Registry, tmp_path: Path
) -> None:
    status = Path("/proc/self/status").read_text()
    held = int(status.split("CapEff:")[1].split()[0], 16)
    if held & (1 << 24):  # CAP_SYS_RESOURCE
        pytest.skip("this root has every capability")
    (tmp_path / "x.def").write_text(
        f"Bootstrap: docker\nFrom: {small.host}/team/small:1\n\n%post\n    true\n"
    )
    ended = cluster.hpc_amp(
        *("container", "build", "x.def", "x.sif", "--arg=--no-https", "--site=local"),
        cwd=tmp_path,
        check=False,
    )
    assert ended.returncode == 1
    assert "build as an ordinary user with --fakeroot" in ended.stderr.splitlines()[-1]
    assert {path.name for path in tmp_path.iterdir()} == {"x.def"}


def test_images_come_from_docker_oras_and_the_web(
    cluster: Cluster, small: Registry, tmp_path: Path
) -> None:
    docker = pull(cluster, tmp_path, f"docker://{small.host}/team/small:1")
    sif = tmp_path / "small_1.sif"
    assert docker.stdout.splitlines()[0] == str(sif)
    small.add_sif("team/sif", "1", sif)
    pull(cluster, tmp_path, f"oras://{small.host}/team/sif:1", "oras.sif")
    assert (tmp_path / "oras.sif").read_bytes() == sif.read_bytes()
    small.files["x.sif"] = sif
    pull(cluster, tmp_path, f"http://{small.host}/files/x.sif")
    assert (tmp_path / "x.sif").read_bytes() == sif.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"small_1.sif", "oras.sif", "x.sif"}


def test_parallel_pulls_fetch_once(cluster: Cluster, small: Registry, tmp_path: Path) -> None:
    uri = f"docker://{small.host}/team/small:1"
    command = [sys.executable, "-m", "hpc_amp", "container", "pull", uri, "shared.sif"]
    pulls = [
        subprocess.Popen(
            [*command, "--site=local", "--arg=--no-https"],
            cwd=tmp_path, env=cluster.environ, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(3)
    ]  # fmt: skip
    said = [one.communicate(timeout=300)[1] for one in pulls]
    assert [one.returncode for one in pulls] == [0, 0, 0], said
    assert sum("pulling docker://" in text for text in said) == 1
    assert sum("exists already" in text for text in said) == 2
    layers = [path for path, _ in small.requests if "/blobs/" in path]
    assert len(layers) == len(set(layers)) == 2  # configuration and layer, once each
    assert [path.name for path in tmp_path.iterdir()] == ["shared.sif"]


def test_a_private_image_needs_a_login(cluster: Cluster, small: Registry, tmp_path: Path) -> None:
    small.login = ("me", "s3cr3t-word")
    uri = f"docker://{small.host}/team/small:1"
    refused = pull(cluster, tmp_path, uri, check=False)
    assert refused.returncode == 1
    assert "the registry refuses the credentials" in refused.stderr.splitlines()[-1]
    login = {"APPTAINER_DOCKER_USERNAME": "me", "APPTAINER_DOCKER_PASSWORD": "s3cr3t-word"}
    home = tmp_path / "home"
    home.mkdir()
    passed = pull(cluster, tmp_path, uri, "x.sif", HOME=str(home), **login)
    assert ("/v2/team/small/manifests/1", "me:s3cr3t-word") in small.requests
    assert "s3cr3t-word" not in passed.stdout + passed.stderr
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert tmp_path / "x.sif" in written
    assert not [path for path in written if b"s3cr3t-word" in path.read_bytes()]


def test_an_image_that_is_not_there(cluster: Cluster, small: Registry, tmp_path: Path) -> None:
    ended = pull(cluster, tmp_path, f"docker://{small.host}/team/small:2", check=False)
    assert ended.returncode == 1
    assert "the registry has no such image or tag" in ended.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_a_web_page_is_not_taken_for_an_image(
    cluster: Cluster, small: Registry, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    page.write_text("<html>please log in</html>")
    small.files["x.sif"] = page
    ended = pull(cluster, tmp_path, f"http://{small.host}/files/x.sif", check=False)
    assert ended.returncode != 0
    assert not (tmp_path / "x.sif").exists()


def test_a_registry_that_cannot_be_reached(cluster: Cluster, tmp_path: Path) -> None:
    ended = pull(cluster, tmp_path, "docker://127.0.0.1:1/a/b:c", check=False)
    assert ended.returncode == 1
    assert "this node does not reach the registry" in ended.stderr.splitlines()[-1]


# ---- images that do not work ---------------------------------------------------------------------


@pytest.mark.slurm
def test_an_image_for_another_architecture_starts_no_rank(
    cluster: Cluster, sif: Path, tmp_path: Path
) -> None:
    image = for_other_architecture(sif, tmp_path / "arm.sif")
    shown = cluster.hpc_amp("container", "inspect", str(image), cwd=tmp_path).stdout
    assert "it is for arm64 nodes" in shown
    # Apptainer itself sees the same.
    real = cluster.run("apptainer", "exec", str(image), "true", cwd=tmp_path, check=False)
    assert "architecture (arm64) could not run" in real.stderr
    words = ("submit", CONFIG, *JOB, f"container.image={image}", "--follow", "--no-check")
    ended = cluster.hpc_amp(*words, cwd=tmp_path, check=False)
    assert ended.returncode == 1
    assert "architecture" in ended.stdout
    assert "arm64" in ended.stdout
    assert "Traceback" not in ended.stdout


def test_as_an_ordinary_user_nothing_is_roots() -> None:
    """The tests above would mean little otherwise."""
    shown = subprocess.run(
        [*AS_USER, "sh", "-c", "id -u; grep CapEff /proc/self/status"],
        text=True, capture_output=True, check=True,
    )  # fmt: skip
    assert shown.stdout.split() == ["65534", "CapEff:", "0000000000000000"]
