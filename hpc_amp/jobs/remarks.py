"""Remarks: settings of a job that are valid but probably do not have the intended effect."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpc_amp.config.load import LoadedJob
from hpc_amp.config.schema import Job
from hpc_amp.config.site import Site
from hpc_amp.config.tree import MappingNode
from hpc_amp.config.values import own_variable
from hpc_amp.jobs.places import follow_latest
from hpc_amp.schedulers import get_scheduler

if TYPE_CHECKING:
    from hpc_amp.schedulers.grammar import Grammar


class _Setting(NamedTuple):
    """An option in a directive of the site or the job."""

    origin: str
    name: str
    """The option's long name if it has one. If the entries of several such options are combined,
    each entry is a setting of its own, named `OPTION ENTRY`."""
    spelling: str
    """The text before the value: `--constraint=`, `-l `."""
    value: str

    @property
    def shown(self) -> str:
        return f"{self.spelling}{self.value}"


def remarks_on(loaded: LoadedJob, site: Site) -> tuple[str, ...]:
    """The remarks on a job on a site, one line each: directives that another one replaces,
    variables in `setup` or container options that hpc-amp overrides, a launcher in the script
    that every rank runs, and an option for the local rank that nobody gives."""
    scheduler = get_scheduler(site.scheduler)
    own = scheduler.own_variables
    found = [
        *_launchers(loaded.job),
        *_local_rank(loaded.job),
        *_container_options("the site's container_args", site.container_args, own),
        *_container_options("container.args", loaded.job.container.args, own),
        *_exports("the site's setup", site.setup, own),
        *_exports("job.setup", loaded.job.resources.setup, own),
    ]
    if scheduler.grammar is not None:
        found += _directives(loaded, site, scheduler.grammar)
    return tuple(found)


# ---- directives ----------------------------------------------------------------------------------


def _directives(loaded: LoadedJob, site: Site, grammar: Grammar) -> Iterator[str]:
    own = _settings("job.directives", loaded.job.resources.directives, grammar)
    counting: dict[str, _Setting] = {}
    for new in (*_settings("the site", site.directives, grammar), *own):
        old = counting.setdefault(new.name, new)
        if old.value == new.value:
            continue
        if old.origin == new.origin and grammar.first_counts(new.name):
            old, new = new, old
        counting[new.name] = new
        yield f"{_replaced(old, new)}{_joined(old, new, grammar)}"
    for setting in counting.values():
        yield from _against_keys(loaded, setting, grammar)
    yield from _without_gpus(loaded, site, counting.get("gres"))


def _settings(origin: str, lines: Sequence[str], grammar: Grammar) -> Iterator[_Setting]:
    """Yield the options with a value of some directives, as the scheduler reads them. Each line is
    parsed separately, so that a wrong one, which rendering refuses later, does not affect the
    others."""
    for line in lines:
        for option in grammar.parse_line(f" {line}").options:
            if option.value is None:
                continue
            long = option.spelling.startswith("--")
            spelling = f"{option.spelling}{grammar.long_separator if long else ' '}"
            entries = grammar.entries(option)
            if entries is None:
                yield _Setting(origin, option.name, spelling, option.value)
            for name, value in entries or ():
                yield _Setting(origin, f"{option.name} {name}", spelling, value)


def _replaced(old: _Setting, new: _Setting) -> str:
    if old.origin == new.origin:
        return f"of two in {_list_of(old.origin)}, {new.shown} counts and {old.shown} does not"
    return f"{new.shown} of {new.origin} replaces {old.shown} of {old.origin}"


def _joined(old: _Setting, new: _Setting, grammar: Grammar) -> str:
    """Advice how to combine two settings, if the scheduler has a form for it."""
    joined = grammar.joined.get(new.name)
    if joined is None or not all(re.fullmatch(joined.form, one.value) for one in (old, new)):
        return ""
    if joined.named and _names(old.value) & _names(new.value):
        return ""
    both = f"{new.spelling}{old.value}{joined.separator}{new.value}"
    return f"; for both, write {both} in {_list_of(new.origin)}"


def _list_of(origin: str) -> str:
    return origin if origin == "job.directives" else "the site's directives"


def _names(value: str) -> set[str]:
    return {re.split("[:=@]", entry)[0] for entry in value.split(",")}


def _against_keys(loaded: LoadedJob, setting: _Setting, grammar: Grammar) -> Iterator[str]:
    """A directive that replaces the one generated from a key of the job file."""
    key = grammar.keys.get(setting.name)
    if key is None or not _is_written(loaded.tree, key):
        return
    value = str(getattr(loaded.job.resources, key.partition(".")[2]))
    if setting.value.partition("=")[2] != value and setting.value != value:
        yield f"{setting.shown} of {setting.origin} replaces {key}: {value}"


def _is_written(tree: MappingNode, key: str) -> bool:
    section, _, name = key.partition(".")
    table = tree.get(section)
    return isinstance(table, MappingNode) and table.get(name) is not None


def _without_gpus(loaded: LoadedJob, site: Site, gres: _Setting | None) -> Iterator[str]:
    """A `--gres` without GPUs that replaces the generated one with GPUs."""
    count = loaded.job.resources.gpus_per_node
    if gres is None or site.gpu_request != "gres" or count == 0 or "gpu" in _names(gres.value):
        return
    kind = f"{site.gpu_type}:" if site.gpu_type is not None else ""
    yield (
        f"{gres.shown} of {gres.origin} replaces the request for GPUs; for both, write "
        f"{gres.shown},gpu:{kind}{count}"
    )


# ---- the script of every rank --------------------------------------------------------------------

_LONGEST_SCRIPT = 2**20


def _launchers(job: Job) -> Iterator[str]:
    """A launcher in the script that every rank runs. This is not an error, because the script may
    start it in some ranks only."""
    if job.run is None or job.world_size == 1:
        return
    from hpc_amp.config.command import launchers_in_script, script_in  # only for own programs

    name = script_in(job.run)
    if name is None:
        return
    for line, launcher in launchers_in_script(_text_of(job, name)):
        yield (
            f"run: every one of the {job.world_size} ranks runs {name}, whose line {line} starts "
            f"{launcher.name}, and that starts ranks itself"
        )
        return


def _local_rank(job: Job) -> Iterator[str]:
    """A Python program with an option for the local rank, which is not given to any rank."""
    name = next((word for word in job.run or [] if word.endswith(".py")), None)
    given = any(re.match(r"--local[-_]rank\b", word) for word in job.run or [])
    if name is None or given or job.ranks_per_node == 1:
        return
    from hpc_amp.config.command import local_rank_argument

    option = local_rank_argument(_text_of(job, name))
    if option is not None:
        line, default = option
        yield (
            f"run: line {line} of {name} takes the local rank from an option, which is not given: "
            f"it is {default} in every rank, so all ranks of a node use the same GPU. Write "
            'default=int(os.environ.get("LOCAL_RANK", 0))'
        )


def _text_of(job: Job, name: str) -> str:
    """The text of a program of the job. Empty if it is not on this machine, or very large."""
    path = follow_latest(Path(job.code or ".")) / name
    try:
        if path.is_file() and path.stat().st_size <= _LONGEST_SCRIPT:
            return path.read_text(errors="replace")
    except OSError:
        pass  # the file may exist on the nodes only
    return ""


# ---- variables -----------------------------------------------------------------------------------


def _container_options(origin: str, words: Sequence[str], own: Mapping[str, str]) -> Iterator[str]:
    """Variables in the container's `--env A=1,B=2` that hpc-amp sets afterwards for each rank."""
    values = [word.removeprefix("--env=") for word in words if word.startswith("--env=")]
    values += [after for word, after in itertools.pairwise(words) if word == "--env"]
    for entry in ",".join(values).split(","):
        name = entry.partition("=")[0]
        meaning = own_variable(name) or own.get(name)
        if meaning is not None:
            yield f"--env {name} of {origin} has no effect, since hpc-amp sets it: {meaning}"


_AFTER_SETUP = {"OMP_NUM_THREADS": "it is job.cpus_per_gpu; set another value in container.env"}


def _exports(origin: str, setup: str, own: Mapping[str, str]) -> Iterator[str]:
    if not setup:
        return
    from hpc_amp.lint.shell import read_shell

    names = {name for command in read_shell(setup).commands for name in command.exported}
    for name in sorted(names):
        meaning = own_variable(name) or own.get(name) or _AFTER_SETUP.get(name)
        if meaning is not None:
            yield f"{origin} exports {name}, which hpc-amp sets afterwards: {meaning}"
