"""A job file, its overrides and a site's defaults to one validated `Job`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_amp.config.build import build, read_value
from hpc_amp.config.keys import expand_section
from hpc_amp.config.overrides import apply_overrides
from hpc_amp.config.paths import Expansion, expand_path, expand_paths
from hpc_amp.config.schema import Job
from hpc_amp.config.source import read_file
from hpc_amp.config.tree import Scalar, Table, merge
from hpc_amp.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LoadedJob:
    """A validated job that still knows where each of its keys was written."""

    job: Job
    path: Path
    text: str
    """The job file as given."""
    tree: Table
    """All layers merged, before types."""
    overrides: tuple[str, ...] = ()
    """Those of the command line, which the file does not have."""
    expanded: tuple[Expansion, ...] = ()
    """The paths that were written with variables."""

    def where(self, key_path: str) -> str:
        """`file:line`, or the override, that set a key such as `train.batch_size`.

        For a key that nobody wrote: the place of the nearest section above it that somebody did.
        """
        return self.tree.place(key_path)

    def error(self, key_path: str, message: str, hint: str | None = None) -> ConfigError:
        """An error about the value of a key, at the place that set it."""
        return ConfigError(f"{key_path}: {message}", where=self.where(key_path), hint=hint)


@dataclass(frozen=True, slots=True)
class JobSource:
    """A job file with its overrides, read but not validated: its site is still to be found."""

    path: Path
    text: str
    tree: Table
    overrides: tuple[str, ...] = ()

    @property
    def site(self) -> str:
        """The value of `site`. Raises ConfigError where it is not text."""
        node = self.tree.get("site")
        if node is None:
            return "auto"
        if isinstance(node, Scalar):
            node, _ = expand_path(node, "site")
        return str(read_value(Job, "site", node))

    def validate(self, defaults: Table | None = None) -> LoadedJob:
        """The job, with `defaults` beneath what was written. Raises ConfigError."""
        tree = self.tree
        if defaults:
            beneath = expand_section(defaults, Job)
            tree = _beneath(beneath, tree)
        tree, expanded = expand_paths(tree, Job)
        job = build(Job, tree)
        loaded = LoadedJob(job, self.path, self.text, tree, self.overrides, tuple(expanded))
        _one_of_train_and_run(loaded)
        return loaded


def read_job(path: Path, overrides: Sequence[str] = ()) -> JobSource:
    """A job file and its overrides as a tree. Raises ConfigError where they are not YAML."""
    text, tree = read_file(path, "job file")
    expanded = expand_section(tree, Job)
    tree = apply_overrides(expanded, overrides, Job)
    return JobSource(path, text, tree, tuple(overrides))


def load_job(
    path: Path, overrides: Sequence[str] = (), *, defaults: Table | None = None
) -> LoadedJob:
    """The validated job of a file, with overrides on top and a site's `defaults` beneath.

    Raises ConfigError for the first thing that is wrong, naming the line or the override.
    """
    return read_job(path, overrides).validate(defaults)


def _beneath(defaults: Table, tree: Table) -> Table:
    """Defaults below a job. Those for `train` apply only to a job that trains."""
    train = tree.get("train")
    if train is None or (isinstance(train, Scalar) and train.is_null):
        entries = {name: node for name, node in defaults.entries.items() if name != "train"}
        defaults = Table(entries, defaults.where)
    merged = merge(defaults, tree)
    assert isinstance(merged, Table)
    return merged


def _one_of_train_and_run(loaded: LoadedJob) -> None:
    job = loaded.job
    if job.train is None and job.run is None:
        raise ConfigError(
            "neither train nor run is given",
            where=str(loaded.path),
            hint="add train: {} for a built-in task, or run: [python, train.py] for your command",
        )
    if job.train is not None and job.run is not None:
        raise ConfigError(
            f"both train and run are given (train: {loaded.where('train')})",
            where=loaded.where("run"),
            hint="keep one: train is a built-in task, run is your own command",
        )
