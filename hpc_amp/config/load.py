"""A job file, its overrides and a site's defaults to one validated `Job`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_amp.config.build import build, read_value
from hpc_amp.config.keys import expand_section, keys_of
from hpc_amp.config.overrides import apply_overrides
from hpc_amp.config.paths import Expansion, expand_path, expand_paths
from hpc_amp.config.schema import Job, Train, as_job, job_class
from hpc_amp.config.source import read_file
from hpc_amp.config.tree import MappingNode, Scalar, merge
from hpc_amp.errors import ConfigError
from hpc_amp.tasks.registry import TaskError, config_class


@dataclass(frozen=True, slots=True)
class LoadedJob:
    """A validated job that still knows where each of its keys was written."""

    job: Job
    path: Path
    text: str
    """The job file as given."""
    tree: MappingNode
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
    written: MappingNode
    """The file alone."""
    tree: MappingNode
    """With the overrides."""
    schema: type[Job] = Job
    """The keys of the job: `train` has those of its task."""
    overrides: tuple[str, ...] = ()

    def with_overrides(self, overrides: Sequence[str]) -> JobSource:
        """The same with further overrides, which may choose another task. Raises ConfigError."""
        return read_tree(self.path, self.text, self.written, (*self.overrides, *overrides))

    @property
    def site(self) -> str:
        """The value of `site`. Raises ConfigError where it is not text."""
        node = self.tree.get("site")
        if node is None:
            return "auto"
        if isinstance(node, Scalar):
            node, _ = expand_path(node, "site")
        return str(read_value(Job, "site", node))

    def validate(self, defaults: MappingNode | None = None) -> LoadedJob:
        """The job, with `defaults` beneath what was written. Raises ConfigError."""
        tree = self.tree
        if defaults:
            beneath = expand_section(defaults, self.schema)
            tree = _beneath(beneath, tree, self.schema)
        tree, expanded = expand_paths(tree, self.schema)
        job = as_job(build(self.schema, tree))
        loaded = LoadedJob(job, self.path, self.text, tree, self.overrides, tuple(expanded))
        _one_of_train_and_run(loaded)
        return loaded


def read_job(path: Path, overrides: Sequence[str] = (), *, code: Path | None = None) -> JobSource:
    """A job file and its overrides as a tree. `code` is where a task of the user's own is imported
    from, if not from the folder that the job names. Raises ConfigError where they are not YAML, and
    where there is no such task."""
    text, tree = read_file(path, "job file")
    return read_tree(path, text, tree, overrides, code=code)


def read_tree(
    path: Path,
    text: str,
    written: MappingNode,
    overrides: Sequence[str] = (),
    *,
    code: Path | None = None,
) -> JobSource:
    """`read_job` for the content of a job file."""
    schema = job_class(_config_of(written, overrides, code))
    tree = apply_overrides(expand_section(written, schema), overrides, schema)
    return JobSource(path, text, written, tree, schema, tuple(overrides))


_CHOOSES_TASK = re.compile(r"(train|train\.task|code)=")


def _config_of(written: MappingNode, overrides: Sequence[str], code: Path | None) -> type[Any]:
    """The configuration of the job's task. A site cannot choose the task, so file and overrides
    tell."""
    chosen = [override for override in overrides if _CHOOSES_TASK.match(override)]
    tree = apply_overrides(expand_section(written, Job), chosen, Job)
    train, folder = tree.get("train"), tree.get("code")
    node = train.get("task") if isinstance(train, MappingNode) else None
    if not isinstance(node, Scalar) or node.is_null:
        name, where = Train().task, str(tree.where)
    else:
        name, where = node.text, node.where
    # A NUL is refused later, with its key.
    if (
        code is None
        and isinstance(folder, Scalar)
        and not folder.is_null
        and "\0" not in folder.text
    ):
        code = Path(expand_path(folder, "code")[0].text)
    try:
        return config_class(name, code)
    except TaskError as error:
        if code is not None and not code.is_dir():
            place = folder.where if folder is not None else where
            raise ConfigError(
                f"code: there is no folder {code}",
                where=place,
                hint=f"it is looked up in {Path.cwd()}",
            ) from None
        raise ConfigError(f"train.task: {error.message}", where=where, hint=error.hint) from None


def load_job(
    path: Path, overrides: Sequence[str] = (), *, defaults: MappingNode | None = None
) -> LoadedJob:
    """The validated job of a file, with overrides on top and a site's `defaults` beneath.

    Raises ConfigError for the first thing that is wrong, naming the line or the override.
    """
    return read_job(path, overrides).validate(defaults)


def _beneath(defaults: MappingNode, tree: MappingNode, schema: type[Job]) -> MappingNode:
    """Defaults below a job. Those for `train` apply only to a job that trains, and where its task
    uses the key."""
    train = tree.get("train")
    if train is None or (isinstance(train, Scalar) and train.is_null):
        entries = {name: node for name, node in defaults.entries.items() if name != "train"}
        defaults = MappingNode(entries, defaults.where)
    elif isinstance(defaults.get("train"), MappingNode):
        defaults = _for_task(defaults, schema)
    merged = merge(defaults, tree)
    assert isinstance(merged, MappingNode)
    return merged


def _for_task(defaults: MappingNode, schema: type[Job]) -> MappingNode:
    """A site's defaults without those that the job's task does not have or use."""
    train, task = defaults.entries["train"], keys_of(schema)["train"].type
    assert isinstance(train, MappingNode)
    used = {
        name: node
        for name, node in train.entries.items()
        if name in keys_of(task) and name not in task.UNUSED
    }
    return MappingNode(
        {**defaults.entries, "train": MappingNode(used, train.where)}, defaults.where
    )


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
