"""Real images for tests on the cluster: built as a user of a cluster would, from a registry on this
machine in the place of the public ones."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpc_amp.containers.apptainer.definition import SUITE
from support.cluster import Cluster
from support.registry import Registry

# An ordinary user, as far as Apptainer can tell: root's files, and none of its capabilities.
AS_USER = ("unshare", "--user", "--map-user=65534", "--map-group=65534", "--")
# Tests wait for it, and for the reading of the result: gzip takes four times the CPU time to build,
# and twice to import torch.
QUICK = ("--arg=--no-https", "--arg=--mksquashfs-args", "--arg=-comp lz4")


def store(cluster: Cluster) -> Path:
    """A folder that stays from one test run to the next."""
    folder = Path(cluster.environ["HPC_AMP_CLUSTER_STATE"]) / "images"
    folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One test run at a time makes what is kept."""
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def debian_mirror() -> str:
    """The Debian archive that apt uses here, or the one that is named for the cluster."""
    named = os.environ.get("HPC_AMP_CLUSTER_SID_MIRROR")
    if named:
        return named
    shown = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(ORIGIN) $(COMPONENT) $(REPO_URI)",
         "Created-By: Packages"],
        text=True, capture_output=True, check=True, timeout=300,
    )  # fmt: skip
    for line in shown.stdout.splitlines():
        origin, component, address = line.split(maxsplit=2)
        if (origin, component) == ("Debian", "main") and "security" not in address:
            address = address.rstrip("/")
            if address.startswith("mirror+file:"):
                listed = Path(address.removeprefix("mirror+file:")).read_text()
                address = re.findall(r"^[^#\s]+", listed, re.MULTILINE)[0].rstrip("/")
            return address
    pytest.fail("no Debian archive is known here: set HPC_AMP_CLUSTER_SID_MIRROR")


def debian_layer(folder: Path, mirror: str) -> Path:
    """What stands in for Docker Hub's `debian:trixie-slim`: the packages that it consists of."""
    path = folder / f"debian-{SUITE}.tar"
    if not path.exists():
        new = folder / f"new-{SUITE}.tar"
        subprocess.run(
            ["mmdebstrap", "--mode=root", "--variant=minbase", "--quiet",
             "--aptopt=Acquire::Languages \"none\"", "--dpkgopt=path-exclude=/usr/share/doc/*",
             "--dpkgopt=path-exclude=/usr/share/locale/*",
             "--dpkgopt=path-exclude=/usr/share/man/*",
             SUITE, str(new), mirror],
            check=True, timeout=600,
        )  # fmt: skip
        new.rename(path)
    return path


def debian_image(cluster: Cluster) -> Path:
    """The image of `hpc-amp container def debian`, built with the real Apptainer. It is kept for as
    long as its definition and its builder stay the same."""
    folder = store(cluster)
    with locked(folder):
        mirror = debian_mirror()
        layer = debian_layer(folder, mirror)
        with Registry() as registry:
            registry.add_image("library/debian", f"{SUITE}-slim", layer)
            definition = folder / "debian-cpu.def"
            cluster.hpc_amp(
                *(
                    "container",
                    "def",
                    "debian",
                    "--mirror",
                    mirror,
                    "-o",
                    str(definition),
                    "--force",
                ),
                *("--base", f"docker://{registry.host}/library/debian:{SUITE}-slim"),
                cwd=folder,
            )
            version = cluster.run("apptainer", "--version", cwd=folder).stdout
            recipe = definition.read_text().replace(registry.host, "") + version + " ".join(QUICK)
            key = hashlib.sha256(recipe.encode()).hexdigest()[:16]
            image = folder / f"debian-cpu-{key}.sif"
            if not image.exists():
                for old in folder.glob("debian-cpu-*.sif"):
                    old.unlink()
                build(cluster, definition, image, folder, "--fakeroot", timeout=1200)
    return image


def build(
    cluster: Cluster, definition: Path, image: Path, cwd: Path, *options: str,
    check: bool = True, timeout: float = 600,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """`hpc-amp container build` as an ordinary user."""
    command = [*AS_USER, sys.executable, "-m", "hpc_amp", "container", "build"]
    return cluster.run(
        *command, str(definition), str(image), "--site=local", *QUICK, *options,
        cwd=cwd, check=check, timeout=timeout,
    )  # fmt: skip


def unpack(image: Path, folder: Path) -> None:
    """The files of a SIF image."""
    head = image.read_bytes()[:65536]
    (table,) = struct.unpack_from("<q", head, 96)
    for place in range(table, len(head) - 585, 585):
        kind, _, _, _, _, offset = struct.unpack_from("<i?3Iq", head, place)
        if kind == 0x4004:
            command = ["unsquashfs", "-quiet", "-no-progress", "-offset", str(offset), "-dest"]
            subprocess.run([*command, str(folder), str(image)], check=True, timeout=300)
            return
    raise AssertionError(f"no file system in {image}")


def tar_as_root(folder: Path, target: Path) -> Path:
    """A layer in which everything is root's."""

    def owned(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        return entry

    with tarfile.open(target, "w") as tar:
        tar.add(folder, arcname=".", filter=owned)
    return target


def small_layer(target: Path) -> Path:
    """A root file system with nothing to run in it."""
    folder = target.with_suffix(".d")
    for name in ("bin", "etc", "tmp", "proc", "dev", "sys", "root"):
        (folder / name).mkdir(parents=True)
    (folder / "etc" / "motd").write_text("small\n")
    return tar_as_root(folder, target)


def for_other_architecture(image: Path, target: Path) -> Path:
    """A copy of a SIF image that says it is for arm64, in its head and at its file system."""
    content = bytearray(image.read_bytes())
    content[45:47] = b"04"
    (table,) = struct.unpack_from("<q", content, 96)
    for place in range(table, table + 48 * 585, 585):
        if struct.unpack_from("<i", content, place)[0] == 0x4004:
            content[place + 209 : place + 211] = b"04"
    target.write_bytes(content)
    return target


def copy_package(name: str, folder: Path) -> None:
    """A pure Python package of this environment, compiled as it is here, with its metadata."""
    module = __import__(name)
    source = Path(str(module.__file__)).parent
    shutil.copytree(source, folder / name)
    for info in source.parent.glob(f"{name}-*.dist-info"):
        shutil.copytree(info, folder / info.name)


def wheel(folder: Path, name: str, version: str, files: dict[str, str], requires: Sequence[str] = ()) -> Path:  # fmt: skip  # noqa: E501
    """A wheel with these files in it."""
    import zipfile

    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {one}\n" for one in requires)
    contents = {
        **files,
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{one},,\n" for one in [*contents, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for one, text in {**contents, f"{info}/RECORD": record}.items():
            archive.writestr(one, text)
    return path
