"""Read facts about an image from its file or folder. No program of the image is run, so this works
without the runtime and on a machine of another architecture."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

from hpc_amp.errors import UsageError

URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.*", re.DOTALL)

# Architectures: names of `uname -m`, and the names that Go, Docker and the runtimes use.
_MACHINES = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "ppc64le": "ppc64le",
    "i686": "386",
    "armv7l": "arm",
    "riscv64": "riscv64",
    "s390x": "s390x",
}
# Architectures by the machine field of an ELF file.
_ELF_MACHINES = {3: "386", 20: "ppc", 21: "ppc64", 22: "s390x", 40: "arm", 62: "amd64"}
_ELF_MACHINES |= {183: "arm64", 243: "riscv64"}


@dataclass(frozen=True, slots=True)
class Image:
    """An image file or folder."""

    path: Path
    kind: str
    """`sif`, `sandbox` (the root folder of a system), `squashfs`, ..."""
    architecture: str | None
    """In Go's form (`amd64`, `arm64`); None if it is unknown."""
    size: int | None
    """In bytes; None for a folder."""
    labels: dict[str, str] = field(default_factory=dict)


def machine() -> str:
    """This machine's architecture in Go's form."""
    return go_name(platform.machine())


def go_name(machine: str) -> str:
    """Convert the name of an architecture from `uname -m` or Slurm to Go's form."""
    return _MACHINES.get(machine, machine)


def image_at(where: str, of_file: Callable[[Path, BinaryIO], Image]) -> Image:
    """Read the image at a path: a root folder, or a file that `of_file` reads. Raises UsageError if
    it is not an image or is incomplete."""
    if URI.fullmatch(where):
        raise UsageError(
            f"{where} is a URI, not an image on this machine",
            hint=f"pull it once: hpc-amp container pull {where}",
        )
    path = Path(os.path.abspath(os.path.expanduser(where)))
    try:
        if path.is_dir():
            return root_folder(path)
        with path.open("rb") as file:
            return of_file(path, file)
    except FileNotFoundError:
        raise UsageError(f"there is no image {path}", hint="check the path") from None
    except OSError as error:
        raise UsageError(
            f"the image {path} cannot be read: {error.strerror}",
            hint="check its permissions and those of the folders above it: namei -l",
        ) from None


def root_folder(path: Path) -> Image:
    """Read the root folder of a system as an image. Raises UsageError if the folder is not one."""
    shell = _inside(path, "/bin/sh")
    if shell is None:
        hint = "a sandbox is the root folder of a system; to train here without one, leave it out"
        raise UsageError(f"the folder {path} is not an image: it has no /bin/sh", hint=hint)
    return Image(path, "sandbox", _elf_architecture(shell), None)


def squashfs_file(path: Path, file: BinaryIO, hint: str) -> Image:
    """Read a squashfs file as an image. `hint` says how to make one, for errors. Raises UsageError
    if it is not a squashfs file or is incomplete."""
    head = file.read(96)
    size = os.fstat(file.fileno()).st_size
    if head[:4] != b"hsqs":
        sif = head[32:41] == b"SIF_MAGIC"
        what = "a SIF file" if sif else "something else"
        raise UsageError(f"{path} is not a squashfs file: it is {what}", hint=hint)
    used = int.from_bytes(head[40:48], "little")  # bytes_used of the superblock
    if len(head) < 96 or size < used:
        raise UsageError(
            f"the image {path} is cut off: {size} of {used} bytes are here",
            hint="the import or the copy broke off; make it again",
        )
    return Image(path, "squashfs", None, size)


def _inside(root: Path, name: str) -> Path | None:
    """The path of a file in a sandbox, whose symbolic links are resolved as in the container. None
    if there is no such file."""
    rest = [part for part in name.split("/") if part]
    done: list[str] = []
    for _ in range(1000):
        if not rest:
            return root.joinpath(*done)
        part = rest.pop(0)
        if part in ("", "."):
            continue
        if part == "..":
            done = done[:-1]
            continue
        candidate = root.joinpath(*done, part)
        if candidate.is_symlink():
            target = os.readlink(candidate)
            rest = target.split("/") + rest
            done = [] if target.startswith("/") else done
        elif candidate.exists():
            done.append(part)
        else:
            return None
    return None


def _elf_architecture(path: Path) -> str | None:
    with path.open("rb") as file:
        head = file.read(20)
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return None
    order: Literal["little", "big"] = "big" if head[5] == 2 else "little"
    number = int.from_bytes(head[18:20], order)
    name = _ELF_MACHINES.get(number)
    return "ppc64le" if name == "ppc64" and order == "little" else name
