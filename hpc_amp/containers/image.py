"""What an image is, told from its bytes alone: no runtime, and no look inside that executes any of
it, so it works on a login node of another architecture."""

from __future__ import annotations

import json
import os
import platform
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

from hpc_amp.errors import UsageError

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.*", re.DOTALL)

# Names as Go, Docker and the runtimes write them. `uname -m` has its own.
_MACHINES = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "ppc64le": "ppc64le",
    "i686": "386",
    "armv7l": "arm",
    "riscv64": "riscv64",
    "s390x": "s390x",
}
_SIF_ARCHITECTURES = {
    b"01": "386",
    b"02": "amd64",
    b"03": "arm",
    b"04": "arm64",
    b"05": "ppc64",
    b"06": "ppc64le",
}
# Machine field of an ELF file.
_ELF_MACHINES = {3: "386", 20: "ppc", 21: "ppc64", 22: "s390x", 40: "arm", 62: "amd64"}
_ELF_MACHINES |= {183: "arm64", 243: "riscv64"}

# A SIF file begins with 32 bytes for the kernel (`#!/usr/bin/env run-singularity`), ten of magic,
# three of version, three of architecture; sizes and places follow, then descriptors.
_SIF_MAGIC = b"SIF_MAGIC\0"
_SIF_PLACES = struct.Struct("<6q")  # free, total, descriptors: offset, length; data: offset, length
_SIF_DESCRIPTOR = struct.Struct("<i?3I3q")  # type, used, id, group, link, offset, size, padded size
_SIF_DESCRIPTOR_SIZE = 585
_SIF_NAME = slice(73, 201)
_SIF_JSON = 0x4006
_MANY = 1024  # descriptors; real files have 48


@dataclass(frozen=True, slots=True)
class Image:
    """An image file or folder."""

    path: Path
    kind: Literal["sif", "sandbox", "singularity-2"]
    architecture: str | None
    """As Go names it (`amd64`, `arm64`); None where it cannot be told."""
    size: int | None
    """Bytes of a file."""
    labels: dict[str, str] = field(default_factory=dict)


def machine() -> str:
    """This machine's architecture, as Go names it."""
    return go_name(platform.machine())


def go_name(machine: str) -> str:
    """What `uname -m` and Slurm call an architecture, as Go names it."""
    return _MACHINES.get(machine, machine)


def read_image(where: str) -> Image:
    """Look at an image. Raises UsageError for what is none, or only a part of one."""
    if _URI.fullmatch(where):
        raise UsageError(
            f"{where} is a URI, not an image that is here",
            hint=f"pull it once: hpc-amp container pull {where}",
        )
    path = Path(os.path.abspath(os.path.expanduser(where)))
    try:
        if path.is_dir():
            return _read_sandbox(path)
        with path.open("rb") as file:
            return _read_file(path, file)
    except FileNotFoundError:
        raise UsageError(f"there is no image {path}", hint="check the path") from None
    except OSError as error:
        raise UsageError(
            f"the image {path} cannot be read: {error.strerror}",
            hint="see its permissions and those of the folders above it: namei -l",
        ) from None


def _read_file(path: Path, file: BinaryIO) -> Image:
    head = file.read(4096)
    size = os.fstat(file.fileno()).st_size
    if head[32:42] == _SIF_MAGIC and len(head) >= 128:
        _, _, table, length, data, data_length = _SIF_PLACES.unpack_from(head, 80)
        end = max(table + length, data + data_length)
        if size < end:
            raise UsageError(
                f"the image {path} is cut off: {size} of {end} bytes are here",
                hint="the download or the copy broke off; fetch it again",
            )
        architecture = _SIF_ARCHITECTURES.get(head[45:47])
        return Image(path, "sif", architecture, size, _labels(_metadata(file, table, length)))
    if head[:4] == b"hsqs" or b"hsqs" in head[:64] or head[1080:1082] == b"\x53\xef":
        return Image(path, "singularity-2", None, size)
    raise UsageError(f"{path} is not an image: {_looks_like(head)}")


def _looks_like(head: bytes) -> str:
    if not head:
        return "it is empty; fetch it again"
    if head.lstrip()[:1] == b"<":
        return "it is a web page, perhaps one that says why the download failed"
    if head[257:262] == b"ustar" or head[:2] == b"\x1f\x8b":
        return "it is an archive; if Docker saved it: hpc-amp container pull docker-archive://FILE"
    if head.lstrip().lower().startswith((b"bootstrap:", b"#")) and b"\0" not in head:
        return "it is text; if it is a definition: hpc-amp container build FILE IMAGE.sif"
    if head[32:42] == _SIF_MAGIC:
        return "it is the beginning of one; fetch it again"
    return "neither a SIF file nor a sandbox folder"


def _metadata(file: BinaryIO, table: int, length: int) -> dict[str, Any]:
    """What the runtime wrote about the image when it was built."""
    for index in range(min(length // _SIF_DESCRIPTOR_SIZE, _MANY)):
        file.seek(table + index * _SIF_DESCRIPTOR_SIZE)
        raw = file.read(_SIF_DESCRIPTOR_SIZE)
        if len(raw) < _SIF_DESCRIPTOR_SIZE:
            break
        kind, used, _, _, _, offset, size, _ = _SIF_DESCRIPTOR.unpack_from(raw)
        if (
            not used
            or kind != _SIF_JSON
            or raw[_SIF_NAME].rstrip(b"\0") != b"inspect-metadata.json"
        ):
            continue
        file.seek(offset)
        try:
            found = json.loads(file.read(min(size, 1 << 24)))
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}
    return {}


def _labels(metadata: dict[str, Any]) -> dict[str, str]:
    try:
        labels = metadata["data"]["attributes"]["labels"]
        return {str(name): str(value) for name, value in labels.items()}
    except (KeyError, TypeError, AttributeError):
        return {}


def _read_sandbox(path: Path) -> Image:
    shell = _inside(path, "/bin/sh")
    if shell is None:
        hint = "a sandbox is the root folder of a system; to train here without one, leave it out"
        raise UsageError(f"the folder {path} is not an image: it has no /bin/sh", hint=hint)
    labels: dict[str, str] = {}
    try:
        found = json.loads((path / ".singularity.d" / "labels.json").read_text())
        labels = {str(name): str(value) for name, value in found.items()}
    except (OSError, ValueError, AttributeError):
        pass
    return Image(path, "sandbox", _elf_architecture(shell), None, labels)


def _inside(root: Path, name: str) -> Path | None:
    """A file of a sandbox, with symbolic links as they lead inside; None where there is none."""
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
