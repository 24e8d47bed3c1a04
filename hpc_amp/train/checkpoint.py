"""Checkpoints on disk: a folder a step, complete or not there at all.

    checkpoints/step-00001500/networks.pt, optimizers.pt, ..., trainer.json, MANIFEST.json

Everything is written into a temporary folder, each file is fsynced, the manifest with the sha256 of
every file comes last, and a rename publishes the folder. torch.load does not notice a flipped bit,
so files are checked against the manifest before they are read. Newest valid wins; a damaged one is
reported and passed over.
"""

from __future__ import annotations

import errno
import json
import math
import os
import pickle
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hpc_amp.train.durable import digest_of, sync_folder, write_durably
from hpc_amp.train.manifest import (
    MANIFEST,
    OWN_FIELDS,
    DamagedCheckpoint,
    read_manifest,
    replace_manifest,
    write_manifest,
)

TRAINER = "trainer.json"
_NAME = re.compile(r"step-([0-9]{8,})")
_TEMPORARY = re.compile(r"\.tmp-step-[0-9]{8,}-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a run after `step` steps.

    `trainer` is what JSON can hold, `tensors` maps a file's stem to nested tensors on the CPU.
    `facts` go into the manifest, for people and for retention: world size, epoch, samples consumed,
    digest of the configuration, environment.
    """

    step: int
    trainer: Mapping[str, Any]
    tensors: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Retention:
    """Which checkpoints stay: the newest `last`, the `best` of highest (or `lowest`) metric, and
    every one whose step is a multiple of `every` (None: no such)."""

    last: int = 3
    best: int = 0
    every: int | None = None
    lowest: bool = False

    def keeps(self, steps: Mapping[int, float | None]) -> set[int]:
        """Of these steps, each with its metric where one was measured there, those that stay."""
        kept = set(sorted(steps)[-self.last :])
        measured = [
            (-metric if self.lowest else metric, step)
            for step, metric in steps.items()
            if metric is not None and math.isfinite(metric)
        ]
        if self.best:
            kept |= {step for _, step in sorted(measured)[-self.best :]}
        if self.every is not None:
            kept |= {step for step in steps if step % self.every == 0}
        return kept


class CheckpointStore:
    """The checkpoints of one run. Only rank 0 saves, one at a time; every rank may load.

    `run` is written into each manifest: what another run has made is read like any other, but is
    never removed.
    """

    def __init__(
        self, folder: Path, *, run: str, retention: Retention, warn: Callable[[str], None]
    ) -> None:
        self.folder = folder
        self.run = run
        self.retention = retention
        self._warn = warn
        self._damaged: set[int] = set()
        self._metrics: dict[int, float | None] = {}
        self._foreign: set[int] = set()
        self._swept = False

    def steps(self) -> list[int]:
        """Steps with a published checkpoint, ascending. They are not verified."""
        if not self.folder.is_dir():
            return []
        matches = (_NAME.fullmatch(entry.name) for entry in self.folder.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def path(self, step: int) -> Path:
        """The folder of the checkpoint of `step`."""
        return self.folder / f"step-{step:08d}"

    # -- writing ----------------------------------------------------------------------------------

    def save(self, checkpoint: Checkpoint) -> Path:
        """Publish a checkpoint, then remove those that retention does not keep. A checkpoint of
        this step that is already there and valid stays, with the metric if that was measured since,
        unless it was passed over: then its files are as written, but cannot be loaded. Where the
        disk is full, those that this one replaces go first. Raises OSError where the disk does not
        take it all the same; at least the newest one published before is untouched then."""
        final = self.path(checkpoint.step)
        if checkpoint.step not in self._damaged and final.exists():
            manifest = self._valid(final)
            if manifest is not None:
                self._measured(checkpoint, manifest)
                return final
        try:
            self._publish(final, checkpoint)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._make_room(checkpoint):
                raise
            self._warn(f"{error}: older checkpoints than retention asks for went, to make room")
            self._publish(final, checkpoint)
        self._damaged.discard(checkpoint.step)
        self._metrics[checkpoint.step] = checkpoint.facts.get("metric")
        self._retire(checkpoint.step)
        return final

    def _measured(self, checkpoint: Checkpoint, manifest: Mapping[str, Any]) -> None:
        """Note the metric of a checkpoint that was published without: retention goes by it."""
        metric = checkpoint.facts.get("metric")
        if metric is None or manifest.get("metric") is not None or manifest["run"] != self.run:
            return
        try:
            replace_manifest(self.path(checkpoint.step), {**manifest, "metric": metric})
            self._metrics[checkpoint.step] = metric
        except OSError as error:
            self._warn(f"the metric of step {checkpoint.step} could not be noted: {error}")

    def _publish(self, final: Path, checkpoint: Checkpoint) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        stage = self.folder / f".tmp-{final.name}-{uuid.uuid4().hex[:8]}"
        stage.mkdir()
        try:
            self._write(stage, checkpoint)
            if final.exists():
                _remove(final)
            os.rename(stage, final)
        except BaseException:
            shutil.rmtree(stage, ignore_errors=True)
            raise
        sync_folder(self.folder)

    def _write(self, stage: Path, checkpoint: Checkpoint) -> None:
        files: dict[str, dict[str, Any]] = {}
        for stem, content in checkpoint.tensors.items():
            files[f"{stem}.pt"] = write_durably(stage / f"{stem}.pt", partial(torch.save, content))
        text = json.dumps(checkpoint.trainer, indent=1).encode()
        files[TRAINER] = write_durably(stage / TRAINER, lambda out: out.write(text))
        write_manifest(
            stage, run=self.run, step=checkpoint.step, facts=checkpoint.facts, files=files
        )
        sync_folder(stage)

    def _retire(self, step: int) -> None:
        """Remove what is not kept of the checkpoints up to `step`. Damaged ones do not count: they
        go once they are passed, and those beyond `step` must not push out what was just saved."""
        try:
            for old in self._not_kept(step):
                _remove(self.path(old))
            if not self._swept:
                self._sweep()
        except OSError as error:
            self._warn(f"an old checkpoint could not be removed: {error}")

    def _sweep(self) -> None:
        """Remove what killed writers have left behind. Once, with the first checkpoint: an attempt
        that was taken for dead and wakes up must not sweep away what a later one is writing."""
        self._swept = True
        for entry in self.folder.iterdir():
            if _TEMPORARY.fullmatch(entry.name):
                shutil.rmtree(entry, ignore_errors=True)

    def _not_kept(self, step: int, metric: float | None = None) -> list[int]:
        """Of the published steps up to `step`, those that are to go once that one is there."""
        passed = [s for s in self.steps() if s <= step and not self._is_foreign(s)]
        whole = {s: self._metrics[s] for s in passed if s not in self._damaged}
        kept = self.retention.keeps({step: metric, **whole})
        return [old for old in passed if old not in kept]

    def _make_room(self, checkpoint: Checkpoint) -> bool:
        """Remove what is about to be replaced; returns whether that is anything. With `last` of at
        least 2 the newest one stays."""
        going = self._not_kept(checkpoint.step, checkpoint.facts.get("metric"))
        for old in going:
            _remove(self.path(old))
        return bool(going)

    def _is_foreign(self, step: int) -> bool:
        """Whether another run made this checkpoint, or may have made it: a manifest that cannot be
        read now does not say. Reads each of the others once."""
        if step not in self._metrics:
            manifest: dict[str, Any] = {}
            try:
                manifest = read_manifest(self.path(step))
            except DamagedCheckpoint:
                self._damaged.add(step)
            except OSError:
                return True
            self._metrics[step] = manifest.get("metric")
            if manifest.get("run", self.run) != self.run:
                self._foreign.add(step)
        return step in self._foreign

    # -- reading ----------------------------------------------------------------------------------

    def newest(self) -> int | None:
        """The newest step whose checkpoint is valid, or None. Damaged ones are reported."""
        for step in reversed(self.steps()):
            if step in self._damaged:
                continue
            try:
                self._verify(self.path(step))
            except (DamagedCheckpoint, OSError) as error:
                self.pass_over(step, error)
            else:
                return step
        return None

    def pass_over(self, step: int, error: Exception | str) -> None:
        """Report that the checkpoint of `step` is not to be used, and do not offer it again."""
        self._warn(f"checkpoint {self.path(step)} is not used: {error}")
        self._damaged.add(step)

    def load(self, step: int) -> Checkpoint:
        """Read and verify the checkpoint of `step`. Raises DamagedCheckpoint."""
        path = self.path(step)
        manifest = self._verify(path)
        trainer = json.loads((path / TRAINER).read_text())
        tensors = {
            Path(name).stem: _load(path / name)
            for name in manifest["files"]
            if name.endswith(".pt")
        }
        facts = {name: value for name, value in manifest.items() if name not in OWN_FIELDS}
        return Checkpoint(step, trainer, tensors, facts)

    def _valid(self, path: Path) -> dict[str, Any] | None:
        """The manifest of a valid checkpoint; None of one that is not, or cannot be read."""
        try:
            return self._verify(path)
        except (DamagedCheckpoint, OSError):
            return None

    def _verify(self, path: Path) -> dict[str, Any]:
        manifest = read_manifest(path)
        if path != self.path(manifest["step"]):
            raise DamagedCheckpoint(f"{MANIFEST} is of step {manifest['step']}")
        files = manifest["files"]
        for name in {TRAINER, *files}:
            if not (path / name).is_file():
                raise DamagedCheckpoint(f"{name} is missing")
            size, written = (path / name).stat().st_size, files.get(name, {}).get("bytes")
            if size != written:
                raise DamagedCheckpoint(f"{name} has {size} bytes, but {written} were written")
            if digest_of(path / name) != files[name]["sha256"]:
                raise DamagedCheckpoint(f"{name} is not what was written (sha256 differs)")
        return manifest


def _load(path: Path) -> Any:
    """Tensors, numbers and containers of them. Code that a file would run is never run."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # Of torch's text only what was found: the rest says how to load it all the same.
        found = re.search(r"\bGLOBAL:? ([\w.]+)", str(error))
        named = f": {found[1]}" if found else ""
        raise DamagedCheckpoint(f"{path.name} holds more than tensors{named}") from None
    except (OSError, MemoryError):
        raise
    except Exception as error:  # for what is none of its own files torch may raise anything
        raise DamagedCheckpoint(f"{path.name} cannot be read ({error!r})") from error


def _remove(path: Path) -> None:
    """Remove a published folder so that no half of it ever carries a published name."""
    doomed = path.with_name(f".tmp-{path.name}-{uuid.uuid4().hex[:8]}")
    os.rename(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)
