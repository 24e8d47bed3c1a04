"""Checkpoints on disk: a folder a step, complete or not there at all.

    checkpoints/step-00001500/networks.pt, optimizers.pt, ..., trainer.json, MANIFEST.json

Everything is written into a temporary folder, each file is fsynced, the manifest with the sha256 of
every file comes last, and a rename publishes the folder. torch.load does not notice a flipped bit,
so files are checked against the manifest before they are read. Newest valid wins; a damaged one is
reported and passed over.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

FORMAT_VERSION = 1
MANIFEST = "MANIFEST.json"
_NAME = re.compile(r"step-([0-9]{8,})")
_TEMPORARY = re.compile(r"\.tmp-step-[0-9]{8,}-[0-9a-f]{8}")


class DamagedCheckpoint(RuntimeError):
    """A checkpoint is incomplete, altered, or of a format that this version does not read."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that was read and verified: `trainer` is the JSON part, `tensors` maps a file's
    stem to its content, on the CPU."""

    path: Path
    step: int
    trainer: dict[str, Any]
    tensors: dict[str, Any]


class CheckpointStore:
    """The checkpoints of one run. Only rank 0 saves; every rank may load."""

    def __init__(self, folder: Path, *, keep: int, warn: Callable[[str], None]) -> None:
        self.folder = folder
        self.keep = keep
        self._warn = warn
        self._damaged: set[int] = set()

    def steps(self) -> list[int]:
        """Steps with a published checkpoint, ascending. They are not verified."""
        if not self.folder.is_dir():
            return []
        matches = (_NAME.fullmatch(entry.name) for entry in self.folder.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def path(self, step: int) -> Path:
        """The folder of the checkpoint of `step`."""
        return self.folder / f"step-{step:08d}"

    def save(self, step: int, trainer: Mapping[str, Any], tensors: Mapping[str, Any]) -> Path:
        """Publish a checkpoint, then remove those beyond `keep`. A checkpoint of this step that is
        already there and valid stays. Raises OSError where the disk does not take it; what was
        published before is untouched then."""
        final = self.path(step)
        if final.exists() and self._is_valid(final):
            return final
        self.folder.mkdir(parents=True, exist_ok=True)
        stage = self.folder / f".tmp-{final.name}-{uuid.uuid4().hex[:8]}"
        stage.mkdir()
        try:
            self._write(stage, step, trainer, tensors)
            if final.exists():
                _remove(final)
            os.rename(stage, final)
        except BaseException:
            shutil.rmtree(stage, ignore_errors=True)
            raise
        _sync_folder(self.folder)
        self._damaged.discard(step)
        self._retire(step)
        return final

    def _write(
        self, stage: Path, step: int, trainer: Mapping[str, Any], tensors: Mapping[str, Any]
    ) -> None:
        files: dict[str, dict[str, Any]] = {}
        for stem, content in tensors.items():
            files[f"{stem}.pt"] = _write_file(
                stage / f"{stem}.pt", lambda out, content=content: torch.save(content, out)
            )
        text = json.dumps(trainer, indent=1).encode()
        files["trainer.json"] = _write_file(stage / "trainer.json", lambda out: out.write(text))
        manifest = json.dumps({"format": FORMAT_VERSION, "step": step, "files": files}, indent=1)
        _write_file(stage / MANIFEST, lambda out: out.write(manifest.encode()))
        _sync_folder(stage)

    def newest(self) -> int | None:
        """The newest step whose checkpoint is valid, or None. Damaged ones are reported."""
        for step in reversed(self.steps()):
            try:
                self._verify(self.path(step))
            except (DamagedCheckpoint, OSError) as error:
                self._warn(f"checkpoint {self.path(step)} is not used: {error}")
                self._damaged.add(step)
            else:
                return step
        return None

    def load(self, step: int) -> Checkpoint:
        """Read and verify the checkpoint of `step`. Raises DamagedCheckpoint."""
        path = self.path(step)
        manifest = self._verify(path)
        trainer = json.loads((path / "trainer.json").read_text())
        tensors = {
            Path(name).stem: torch.load(path / name, map_location="cpu", weights_only=True)
            for name in manifest["files"]
            if name.endswith(".pt")
        }
        return Checkpoint(path, step, trainer, tensors)

    def _is_valid(self, path: Path) -> bool:
        try:
            self._verify(path)
        except (DamagedCheckpoint, OSError):
            return False
        return True

    def _verify(self, path: Path) -> dict[str, Any]:
        try:
            manifest: dict[str, Any] = json.loads((path / MANIFEST).read_text())
            version, step = manifest["format"], int(manifest["step"])
            digests = {name: str(entry["sha256"]) for name, entry in manifest["files"].items()}
        except FileNotFoundError:
            raise DamagedCheckpoint(f"{MANIFEST} is missing") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedCheckpoint(f"{MANIFEST} cannot be read ({error!r})") from None
        if version != FORMAT_VERSION:
            raise DamagedCheckpoint(f"format {version} is not {FORMAT_VERSION}, which we read")
        if path != self.path(step):
            raise DamagedCheckpoint(f"{MANIFEST} is of step {step}")
        for name in {"trainer.json", *digests}:
            if not (path / name).is_file():
                raise DamagedCheckpoint(f"{name} is missing")
            if _digest(path / name) != digests.get(name):
                raise DamagedCheckpoint(f"{name} is not what was written (sha256 differs)")
        return manifest

    def _retire(self, step: int) -> None:
        """Remove all but the newest `keep` up to `step`. Damaged ones do not count: they go once
        they are passed, and those beyond `step` must not push out what was just saved."""
        passed = [s for s in self.steps() if s <= step]
        kept = [s for s in passed if s not in self._damaged][-self.keep :]
        try:
            for old in passed:
                if old not in kept:
                    _remove(self.path(old))
            for entry in self.folder.iterdir():
                if _TEMPORARY.fullmatch(entry.name):
                    shutil.rmtree(entry, ignore_errors=True)
        except OSError as error:
            self._warn(f"an old checkpoint could not be removed: {error}")


class _HashingWriter:
    """A file that hashes what passes, so that the digest is of what was meant to be written."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._hash = hashlib.sha256()
        self.size = 0
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        self.size += len(data)
        try:
            return self._out.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._out.flush()

    def description(self) -> dict[str, Any]:
        return {"bytes": self.size, "sha256": self._hash.hexdigest()}


def _write_file(path: Path, write: Callable[[Any], Any]) -> dict[str, Any]:
    with path.open("wb") as out:
        hashing = _HashingWriter(out)
        try:
            write(hashing)
        except RuntimeError:
            # torch.save turns a full disk into a RuntimeError about a position.
            if hashing.error is not None:
                raise hashing.error from None
            raise
        out.flush()
        os.fsync(out.fileno())
    return hashing.description()


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while block := source.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """Remove a published folder so that no half of it ever carries a published name."""
    doomed = path.with_name(f".tmp-{path.name}-{uuid.uuid4().hex[:8]}")
    os.rename(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)
