"""`MANIFEST.json`: the files of a checkpoint and where it comes from.

It is written last, and holds a digest of its own content, so that a flipped bit in it is noticed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpc_amp.files import replacing
from hpc_amp.train.durable import sync_folder, write_durably

FORMAT_VERSION = 2
MANIFEST = "MANIFEST.json"
OWN_FIELDS = ("format", "run", "step", "files")
_SEAL = "sha256"


class DamagedCheckpoint(RuntimeError):
    """A checkpoint is incomplete, altered, or in a format that this version does not read."""


def write_manifest(
    folder: Path, *, run: str, step: int, facts: Mapping[str, Any], files: Mapping[str, Any]
) -> None:
    """Write the manifest of the checkpoint in `folder`.

    `files` maps each file's name to its `bytes` and `sha256`; `facts` are further fields. Raises
    OSError.
    """
    manifest = {"format": FORMAT_VERSION, "run": run, "step": step, **facts, "files": files}
    _write(folder / MANIFEST, manifest)


def replace_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Replace the manifest of a published checkpoint atomically. Raises OSError."""
    with replacing(folder / MANIFEST) as new:
        _write(new, manifest)
    sync_folder(folder)


def _write(path: Path, manifest: Mapping[str, Any]) -> None:
    sealed = _text({**manifest, _SEAL: _seal(manifest)})
    write_durably(path, lambda out: out.write(sealed))


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, as it was written. Raises DamagedCheckpoint, and OSError if the
    disk cannot be read."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        version, seal = manifest["format"], manifest.pop(_SEAL, None)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise DamagedCheckpoint(f"{MANIFEST} is missing") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpoint(f"{MANIFEST} cannot be read ({error!r})") from None
    # The version comes first: another format may have no seal.
    if version != FORMAT_VERSION:
        raise DamagedCheckpoint(
            f"{MANIFEST} has format {version}, but this version reads {FORMAT_VERSION}"
        )
    if seal != _seal(manifest):
        raise DamagedCheckpoint(f"{MANIFEST} differs from what was written (sha256)")
    return manifest


def _seal(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(_text(manifest)).hexdigest()


def _text(manifest: Mapping[str, Any]) -> bytes:
    return json.dumps(manifest, indent=1).encode()
