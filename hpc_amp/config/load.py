"""Read a job file, its overrides and a site's defaults, and convert them to a validated `Job`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from hpc_amp.config.build import build, read_value
from hpc_amp.config.keys import expand_section, keys_of
from hpc_amp.config.overrides import apply_overrides
from hpc_amp.config.paths import Expansion, expand_path, expand_paths
from hpc_amp.config.schema import Job, Train, as_job, job_class
from hpc_amp.config.source import parse_file, read_file
from hpc_amp.config.tree import MappingNode, Scalar, merge
from hpc_amp.errors import ConfigError
from hpc_amp.tasks.registry import TaskError, config_class


class LoadedJob(NamedTuple):
    """A validated job with the place where each of its keys was written."""

    job: Job
    path: Path
    text: str
    """The job file as given."""
    tree: MappingNode
    """The job file, the overrides and the site's defaults, merged."""
    overrides: tuple[str, ...] = ()
    """The overrides of the command line."""
    expanded: tuple[Expansion, ...] = ()
    """The paths that were written with variables."""

    def where(self, key_path: str) -> str:
        """`file:line`, or the override, that set a key such as `train.batch_size`. For a key that
        was not written, the place of the nearest section above it that was."""
        return self.tree.place(key_path)

    def error(self, key_path: str, message: str, hint: str | None = None) -> ConfigError:
        """Create an error about the value of a key, with the place that set it."""
        return ConfigError(f"{key_path}: {message}", where=self.where(key_path), hint=hint)


class JobText(NamedTuple):
    """The content of a job file that is not on disk."""

    path: Path
    """For messages: what it was made from."""
    text: str
    overrides: tuple[str, ...] = ()
    """Overrides that belong to it, before those of the command line."""
    folder: Path | None = None
    """The folder that its paths are relative to. None: the present one."""
    run_dir: Path | None = None
    """The run whose job it is, if it is one that runs again."""

    def __str__(self) -> str:
        return str(self.path)


class JobSource(NamedTuple):
    """A job file with its overrides, read but not validated. Validation needs the site, whose name
    is taken from here."""

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
        """The same job file with further overrides, which may choose another task. Raises
        ConfigError."""
        every = (*self.overrides, *overrides)
        if any(map(_CHOOSES_TASK.match, overrides)):
            return read_tree(self.path, self.text, self.written, every)
        tree = apply_overrides(self.tree, overrides, self.schema)
        return self._replace(tree=tree, overrides=every)

    @property
    def site(self) -> str:
        """The value of the key `site`. Raises ConfigError if it is not text."""
        node = self.tree.get("site")
        if node is None:
            return "auto"
        if isinstance(node, Scalar):
            node, _ = expand_path(node, "site")
        return str(read_value(self.schema, "site", node))

    def validate(self, defaults: MappingNode | None = None) -> LoadedJob:
        """Validate the job. `defaults` are a site's defaults, for keys that neither the file nor an
        override sets. Raises ConfigError for the first error."""
        tree = self.tree
        if defaults:
            beneath = expand_section(defaults, self.schema)
            tree = _beneath(beneath, tree, self.schema)
        tree, expanded = expand_paths(tree, self.schema)
        job = as_job(build(self.schema, tree))
        loaded = LoadedJob(job, self.path, self.text, tree, self.overrides, tuple(expanded))
        _one_of_train_and_run(loaded)
        if job.run is None and not job.values:
            return loaded
        return loaded._replace(job=replace(job, run=_with_values(loaded)))


def read_job(
    file: Path | JobText, overrides: Sequence[str] = (), *, code: Path | None = None
) -> JobSource:
    """Read a job file and merge its overrides. `code` is the folder from which a task of the user's
    own is imported; default: the value of the key `code`. Raises ConfigError if the file or an
    override is not valid YAML, or if the task does not exist."""
    if isinstance(file, JobText):
        tree = parse_file(file.text, str(file.path), "job file")
        return read_tree(file.path, file.text, tree, (*file.overrides, *overrides), code=code)
    text, tree = read_file(file, "job file")
    return read_tree(file, text, tree, overrides, code=code)


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
    """The configuration class of the job's task. A site cannot choose the task, so only the file
    and the overrides are considered."""
    chosen = [override for override in overrides if _CHOOSES_TASK.match(override)]
    tree = apply_overrides(written, chosen, Job)  # neither key is in a section with a shorthand
    train, folder = tree.get("train"), tree.get("code")
    node = train.get("task") if isinstance(train, MappingNode) else None
    if not isinstance(node, Scalar) or node.is_null:
        name, where = Train().task, str(tree.where)
    else:
        name, where = node.text, node.where
    # A NUL character is refused later, with an error that names the key.
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
    file: Path | JobText, overrides: Sequence[str] = (), *, defaults: MappingNode | None = None
) -> LoadedJob:
    """Read and validate a job file. `overrides` replace keys of the file, and a site's `defaults`
    set keys that neither sets.

    Raises ConfigError for the first error, with the line or the override.
    """
    return read_job(file, overrides).validate(defaults)


def _beneath(defaults: MappingNode, tree: MappingNode, schema: type[Job]) -> MappingNode:
    """Merge a site's defaults beneath a job. Defaults of `train` apply only to jobs that train, and
    only for keys that the task uses."""
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
    """A site's defaults without keys of `train` that the job's task does not have or use."""
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


def _with_values(loaded: LoadedJob) -> list[str] | None:
    """The words of `run` with `{NAME}` replaced by the value of that name. Other braces stay."""
    run, values = loaded.job.run, loaded.job.values
    used: set[str] = set()

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in values:
            return match[0]
        used.add(name)
        return values[name]

    words = [re.sub(r"(?<!\$)\{(\w+)\}", value, word) for word in run or ()]
    unused = next((name for name in values if name not in used), None)
    if unused is not None:
        raise loaded.error(
            f"values.{unused}", f"run has no {{{unused}}}", 'write it in a word of run: "--lr={lr}"'
        )
    return None if run is None else words


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
