"""Checkpoints on disk. Each is a folder, which is either complete or does not exist:

    checkpoints/step-00001500/networks.pt, optimizers.pt, ..., trainer.json, MANIFEST.json

Files are written to a temporary folder and fsynced. The manifest, which holds the sha256 of every
file, comes last, and a rename publishes the folder. `torch.load` does not notice a flipped bit, so
files are checked against the manifest before they are read. The newest valid checkpoint is used; a
damaged one is reported and ignored.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hpc_amp.errors import FULL_DISK
from hpc_amp.models.weights import UnreadableError, read_tensors
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

    `trainer`: what JSON can hold.
    `tensors`: for each file, by its stem, nested dicts, lists and tuples of tensors on the CPU.
    `facts`: go into the manifest, for people and for retention: world size, epoch, samples, metric,
    settings, environment.
    """

    step: int
    trainer: Mapping[str, Any]
    tensors: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Retention:
    """Which checkpoints are kept: the `last` newest ones, the `best` ones with the highest metric
    (the lowest, if `lowest`), and those whose step is a multiple of `every` (None: no such)."""

    last: int = 3
    best: int = 0
    every: int | None = None
    lowest: bool = False

    def keeps(self, steps: Mapping[int, float | None]) -> set[int]:
        """The steps to keep, of the given ones. Each step maps to its metric, or to None if it was
        not evaluated; metrics that are not finite are ignored."""
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

    `folder`: the folder of the checkpoints; `save` creates it.
    `run`: the name of the run, for the manifests. Checkpoints of another run in the same folder can
    be loaded, but are never removed.
    `warn`: reports a problem that does not stop the run.
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

    @classmethod
    def of_run(cls, folder: Path) -> CheckpointStore:
        """The store of a run that is only read: `folder` is the run's `checkpoints`."""
        return cls(folder, run=folder.parent.name, retention=Retention(), warn=print)

    def steps(self) -> list[int]:
        """The steps that have a published checkpoint, ascending. They are not verified."""
        if not self.folder.is_dir():
            return []
        matches = (_NAME.fullmatch(entry.name) for entry in self.folder.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def path(self, step: int) -> Path:
        """The folder of the checkpoint of `step`."""
        return self.folder / f"step-{step:08d}"

    # -- writing ----------------------------------------------------------------------------------

    def save(self, checkpoint: Checkpoint) -> Path:
        """Publish a checkpoint, then remove those that are no longer kept. Returns its folder.

        A valid checkpoint of the same step stays as it is; only its metric is added, if that has
        been measured since. A checkpoint that was passed over is replaced, even if its files are as
        they were written.

        If the disk is full, the checkpoints that this one replaces are removed first. Raises
        OSError if it still does not fit; the newest published checkpoint is untouched then.
        """
        final = self.path(checkpoint.step)
        if checkpoint.step not in self._damaged and final.exists():
            manifest = self._valid(final)
            if manifest is not None:
                self._add_metric(checkpoint, manifest)
                return final
        try:
            self._publish(final, checkpoint)
        except OSError as error:
            if error.errno not in FULL_DISK or not self._make_room(checkpoint):
                raise
            self._warn(f"{error}: older checkpoints were removed early, to make room")
            self._publish(final, checkpoint)
        self._damaged.discard(checkpoint.step)
        self._metrics[checkpoint.step] = checkpoint.facts.get("metric")
        self._retire(checkpoint.step)
        return final

    def _add_metric(self, checkpoint: Checkpoint, manifest: Mapping[str, Any]) -> None:
        """Add the metric to the manifest of a checkpoint that was published without one."""
        metric = checkpoint.facts.get("metric")
        if metric is None or manifest.get("metric") is not None or manifest["run"] != self.run:
            return
        try:
            replace_manifest(self.path(checkpoint.step), {**manifest, "metric": metric})
            self._metrics[checkpoint.step] = metric
        except OSError as error:
            self._warn(f"the metric of step {checkpoint.step} could not be written: {error}")

    def _publish(self, final: Path, checkpoint: Checkpoint) -> None:
        """Write a checkpoint to a temporary folder, and rename it to `final`."""
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
        """Write the files of a checkpoint, and the manifest last."""
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
        """Remove the checkpoints up to `step` that are no longer kept. Damaged ones are removed as
        well. Later ones do not count: they must not displace the checkpoint that was just saved."""
        try:
            for old in self._not_kept(step):
                _remove(self.path(old))
            if self._swept:
                return
            # Once, remove what killed writers have left behind. Not later: an attempt that seemed
            # dead and continues must not remove the folder that a later attempt is writing.
            self._swept = True
            for entry in self.folder.iterdir():
                if _TEMPORARY.fullmatch(entry.name):
                    shutil.rmtree(entry, ignore_errors=True)
        except OSError as error:
            self._warn(f"an old checkpoint could not be removed: {error}")

    def _not_kept(self, step: int, metric: float | None = None) -> list[int]:
        """The published steps up to `step` that are not kept after `step` is published."""
        passed = [s for s in self.steps() if s <= step and not self._is_foreign(s)]
        whole = {s: self._metrics[s] for s in passed if s not in self._damaged}
        kept = self.retention.keeps({step: metric, **whole})
        return [old for old in passed if old not in kept]

    def _make_room(self, checkpoint: Checkpoint) -> bool:
        """Remove the checkpoints that `checkpoint` will replace. Returns whether there were any. If
        retention keeps at least 2, the newest published one stays."""
        going = self._not_kept(checkpoint.step, checkpoint.facts.get("metric"))
        for old in going:
            _remove(self.path(old))
        return bool(going)

    def _is_foreign(self, step: int) -> bool:
        """Whether another run made this checkpoint. True as well if the manifest cannot be read at
        the moment, since such a checkpoint must not be removed. Each manifest is read once."""
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
        """The newest step whose checkpoint is valid, or None. Warns of damaged ones."""
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

    def verify(self, step: int) -> None:
        """Check the files of a checkpoint. Raises DamagedCheckpoint, and OSError if the disk cannot
        be read."""
        self._verify(self.path(step))

    def pass_over(self, step: int, error: Exception | str) -> None:
        """Warn that the checkpoint of `step` is not used, and do not offer it again."""
        self._warn(f"checkpoint {self.path(step)} is not used: {error}")
        self._damaged.add(step)

    def load(self, step: int) -> Checkpoint:
        """Read and verify the checkpoint of `step`. Raises DamagedCheckpoint, and OSError if the
        disk cannot be read."""
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
        """The manifest of a checkpoint, or None if it is damaged or cannot be read."""
        try:
            return self._verify(path)
        except (DamagedCheckpoint, OSError):
            return None

    def _verify(self, path: Path) -> dict[str, Any]:
        """Check every file against the manifest, which is returned. Raises DamagedCheckpoint."""
        manifest = read_manifest(path)
        if path != self.path(manifest["step"]):
            raise DamagedCheckpoint(f"{MANIFEST} belongs to step {manifest['step']}")
        files = manifest["files"]
        for name in {TRAINER, *files}:
            if not (path / name).is_file():
                raise DamagedCheckpoint(f"{name} is missing")
            size, written = (path / name).stat().st_size, files.get(name, {}).get("bytes")
            if size != written:
                raise DamagedCheckpoint(f"{name} has {size} bytes, but {written} were written")
            if digest_of(path / name) != files[name]["sha256"]:
                raise DamagedCheckpoint(f"{name} differs from what was written (sha256)")
        return manifest


def weights_of(folder: Path, wanted: str) -> str:
    """Which file of the checkpoint `folder` is wanted, without `.pt`. `auto` is the `average` of
    the weights where there is one, else the `networks`."""
    if wanted != "auto":
        return wanted
    return "average" if (folder / "average.pt").is_file() else "networks"


def _load(path: Path) -> Any:
    """Load tensors, numbers and containers of them. Never runs code from the file."""
    try:
        return read_tensors(path)
    except UnreadableError as error:
        raise DamagedCheckpoint(f"{path.name} {error}") from error


def _remove(path: Path) -> None:
    """Remove a published folder. It is renamed first: an incomplete one never has its name."""
    doomed = path.with_name(f".tmp-{path.name}-{uuid.uuid4().hex[:8]}")
    os.rename(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)
