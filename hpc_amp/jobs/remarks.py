"""What somebody wrote for a job and has no effect, although nothing is wrong with it by itself."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_amp.config.command import launchers_in_script, script_in
from hpc_amp.config.load import LoadedJob
from hpc_amp.config.schema import Job
from hpc_amp.config.site import Site
from hpc_amp.config.tree import Table
from hpc_amp.config.values import own_variable
from hpc_amp.lint.directives import MARKERS, SCHEDULERS, SchedulerName, read_header
from hpc_amp.lint.options import parse_options, resource_list
from hpc_amp.lint.script import read_script
from hpc_amp.lint.shell import read_shell
from hpc_amp.schedulers import get_scheduler

# Generated options by the key that they come from.
_KEYS: dict[SchedulerName, dict[str, str]] = {
    "slurm": {
        "nodes": "job.nodes",
        "time": "job.walltime",
        "mem": "job.memory",
        "partition": "job.queue",
        "account": "job.account",
    },
    "pbs": {"l walltime": "job.walltime", "q": "job.queue", "A": "job.account"},
    "cobalt": {
        "nodecount": "job.nodes",
        "time": "job.walltime",
        "queue": "job.queue",
        "project": "job.account",
    },
}
# Options whose values can be joined, with what stands between them and what each may look like.
_JOINED: dict[tuple[SchedulerName, str], tuple[str, str]] = {
    ("slurm", "constraint"): ("&", r"[\w.:-]+(&[\w.:-]+)*"),
    ("slurm", "exclude"): (",", r".+"),
    ("slurm", "gres"): (",", r".+"),
    ("slurm", "licenses"): (",", r".+"),
    ("slurm", "mail-type"): (",", r".+"),
    ("pbs", "v"): (",", r".+"),
}
# Of these, an entry may stand in both: the joined form would name it twice.
_COUNTED = ("gres", "licenses", "v")


@dataclass(frozen=True, slots=True)
class _Setting:
    """An option in a directive of the site or the job."""

    origin: str
    name: str
    """Long where there is a long one; a resource of PBS' `-l` and an attribute of Cobalt's
    `--attrs` are options of their own."""
    spelling: str
    """All that stands before the value: `--constraint=`, `-l `."""
    value: str

    @property
    def shown(self) -> str:
        return f"{self.spelling}{self.value}"


def remarks_on(loaded: LoadedJob, site: Site) -> tuple[str, ...]:
    """One line for each directive that another one replaces, for each variable that `setup` or an
    option of the container sets in vain, and for a launcher in the script that every rank runs."""
    own = get_scheduler(site.scheduler).own_variables
    found = [
        *_launchers(loaded.job),
        *_container_options("the site's container_args", site.container_args, own),
        *_container_options("container.args", loaded.job.container.args, own),
        *_exports("the site's setup", site.setup, own),
        *_exports("job.setup", loaded.job.job.setup, own),
    ]
    if site.scheduler in SCHEDULERS:
        found += _directives(loaded, site, site.scheduler)
    return tuple(found)


# ---- directives ----------------------------------------------------------------------------------


def _directives(loaded: LoadedJob, site: Site, scheduler: SchedulerName) -> Iterator[str]:
    own = _settings("job.directives", loaded.job.job.directives, scheduler)
    counting: dict[str, _Setting] = {}
    for new in (*_settings("the site", site.directives, scheduler), *own):
        old = counting.setdefault(new.name, new)
        if old.value == new.value:
            continue
        if old.origin == new.origin and new.name.startswith("l "):
            old, new = new, old  # of two equal resources, PBS takes the first
        counting[new.name] = new
        yield f"{_replaced(old, new)}{_joined(old, new, scheduler)}"
    for setting in counting.values():
        yield from _against_keys(loaded, setting, scheduler)
    yield from _without_gpus(loaded, site, counting.get("gres"))


def _settings(origin: str, lines: Sequence[str], scheduler: SchedulerName) -> Iterator[_Setting]:
    """The options of directives that have a value, as the scheduler reads them. Each line is read
    by itself, so that a wrong one, which rendering refuses, does not hide the others."""
    for line in lines:
        text = f"#!/bin/sh\n{MARKERS[scheduler]} {line}\n".encode()
        for option in parse_options(read_header(read_script(text, ""), scheduler)).options:
            if option.value is None:
                continue
            long = option.spelling.startswith("--")
            spelling = f"{option.spelling}{'=' if long and scheduler != 'cobalt' else ' '}"
            parts = _parts(option.name, option.value, scheduler)
            if parts is None:
                yield _Setting(origin, option.name, spelling, option.value)
            for name, value in parts or ():
                yield _Setting(origin, f"{option.name} {name}", spelling, value)


def _parts(name: str, value: str, scheduler: SchedulerName) -> list[tuple[str, str]] | None:
    """The entries of an option whose entries add up, each by its name; None for other options."""
    if scheduler == "pbs" and name in ("l", "W"):
        entries = resource_list(value)
        return [(key, key if what is None else f"{key}={what}") for key, what in entries]
    if scheduler == "cobalt" and name in ("attrs", "env"):
        separator = r":(?=\w+=)" if name == "env" else ":"
        return [(item.partition("=")[0], item) for item in re.split(separator, value)]
    return None


def _replaced(old: _Setting, new: _Setting) -> str:
    if old.origin == new.origin:
        return f"of two in {_list_of(old.origin)}, {new.shown} counts and {old.shown} does not"
    return f"{new.shown} of {new.origin} replaces {old.shown} of {old.origin}"


def _joined(old: _Setting, new: _Setting, scheduler: SchedulerName) -> str:
    """Advice to have both, where the scheduler has a form for it."""
    separator, form = _JOINED.get((scheduler, new.name), ("", ""))
    if not separator or not all(re.fullmatch(form, one.value) for one in (old, new)):
        return ""
    if new.name in _COUNTED and _names(old.value) & _names(new.value):
        return ""
    both = f"{new.spelling}{old.value}{separator}{new.value}"
    return f"; for both, write {both} in {_list_of(new.origin)}"


def _list_of(origin: str) -> str:
    return origin if origin == "job.directives" else "the site's directives"


def _names(value: str) -> set[str]:
    return {re.split("[:=@]", entry)[0] for entry in value.split(",")}


def _against_keys(loaded: LoadedJob, setting: _Setting, scheduler: SchedulerName) -> Iterator[str]:
    """A directive that stands in the place of what a key asks for."""
    key = _KEYS[scheduler].get(setting.name)
    if key is None or not _is_written(loaded.tree, key):
        return
    value = str(getattr(loaded.job.job, key.partition(".")[2]))
    if setting.value.partition("=")[2] != value and setting.value != value:
        yield f"{setting.shown} of {setting.origin} replaces {key}: {value}"


def _is_written(tree: Table, key: str) -> bool:
    section, _, name = key.partition(".")
    table = tree.get(section)
    return isinstance(table, Table) and table.get(name) is not None


def _without_gpus(loaded: LoadedJob, site: Site, gres: _Setting | None) -> Iterator[str]:
    """A `--gres` for something else in the place of the generated one for GPUs."""
    count = loaded.job.job.gpus_per_node
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
    """What a script does depends on more than its words, so that this is no error."""
    name = script_in(job.run or [])
    if name is None or job.world_size == 1:
        return
    path = Path(job.code or ".", name)
    try:
        if not path.is_file() or path.stat().st_size > _LONGEST_SCRIPT:
            return
        text = path.read_text(errors="replace")
    except OSError:
        return  # the job says so, if it is there at all
    for line, launcher in launchers_in_script(text):
        yield (
            f"run: every one of the {job.world_size} ranks runs {name}, whose line {line} starts "
            f"{launcher.name}, and that starts ranks itself"
        )
        return


# ---- variables -----------------------------------------------------------------------------------


def _container_options(origin: str, words: Sequence[str], own: Mapping[str, str]) -> Iterator[str]:
    """Variables in the container's `--env A=1,B=2`; the rank's own come after them."""
    values = [word.removeprefix("--env=") for word in words if word.startswith("--env=")]
    values += [after for word, after in itertools.pairwise(words) if word == "--env"]
    for entry in ",".join(values).split(","):
        name = entry.partition("=")[0]
        meaning = own_variable(name) or own.get(name)
        if meaning is not None:
            yield f"--env {name} of {origin} has no effect, since hpc-amp sets it: {meaning}"


_AFTER_SETUP = {
    "OMP_NUM_THREADS": "it is job.cpus_per_gpu, and container.env can say another value"
}


def _exports(origin: str, setup: str, own: Mapping[str, str]) -> Iterator[str]:
    names = {name for command in read_shell(setup).commands for name in command.exported}
    for name in sorted(names):
        meaning = own_variable(name) or own.get(name) or _AFTER_SETUP.get(name)
        if meaning is not None:
            yield f"{origin} exports {name}, which hpc-amp sets afterwards: {meaning}"
