"""Read the images of Apptainer and Singularity: SIF files, older files, and root folders."""

from __future__ import annotations

import dataclasses
import json
import os
import struct
from pathlib import Path
from typing import Any, BinaryIO

from hpc_amp.containers.image import Image, image_at
from hpc_amp.errors import UsageError

_SIF_ARCHITECTURES = {
    b"01": "386",
    b"02": "amd64",
    b"03": "arm",
    b"04": "arm64",
    b"05": "ppc64",
    b"06": "ppc64le",
}
# A SIF file begins with 32 bytes for the kernel (`#!/usr/bin/env run-singularity`), 10 bytes of
# magic, 3 of version, and 3 of architecture. Sizes and offsets follow, then descriptors.
_SIF_MAGIC = b"SIF_MAGIC\0"
_SIF_PLACES = struct.Struct("<6q")  # free, total, descriptors: offset, length; data: offset, length
_SIF_DESCRIPTOR = struct.Struct("<i?3I3q")  # type, used, id, group, link, offset, size, padded size
_SIF_DESCRIPTOR_SIZE = 585
_SIF_NAME = slice(73, 201)
_SIF_JSON = 0x4006
_MANY = 1024  # limit of descriptors to read; real files have 48


def read_image(where: str) -> Image:
    """Read an image. Raises UsageError if it is not an image or is incomplete."""
    image = image_at(where, _read_file)
    if image.kind != "sandbox":
        return image
    return dataclasses.replace(image, labels=_labels_of_sandbox(image.path))


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
    """The metadata that the runtime stored when the image was built."""
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


def _labels_of_sandbox(path: Path) -> dict[str, str]:
    try:
        found = json.loads((path / ".singularity.d" / "labels.json").read_text())
        return {str(name): str(value) for name, value in found.items()}
    except (OSError, ValueError, AttributeError):
        return {}
