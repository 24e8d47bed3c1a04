"""Which site a job runs on: by name, by path, or found out from this machine."""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from hpc_amp.config.build import build
from hpc_amp.config.checks import check_site
from hpc_amp.config.folders import check_known, check_own_name, named_files
from hpc_amp.config.keys import expand_section
from hpc_amp.config.load import LoadedJob, read_job
from hpc_amp.config.paths import expand_paths
from hpc_amp.config.schema import Train, job_class
from hpc_amp.config.site import Site
from hpc_amp.config.source import read_file
from hpc_amp.config.tree import MappingNode, Scalar
from hpc_amp.errors import ConfigError
from hpc_amp.schedulers import SCHEDULERS
from hpc_amp.schedulers.base import Which
from hpc_amp.tasks.registry import config_class

HERE = "local"
"""The site of a machine without a scheduler."""

_NOT_FOR_SITES = ("name", "site", "code", "run", "train.task")


def load_site(path: Path) -> Site:
    """The site that a file describes. Raises ConfigError like a job file does."""
    _, tree = read_file(path, "site file")
    tree, expanded = expand_paths(tree, Site)
    return dataclasses.replace(_site_of(path, tree), expanded=tuple(expanded))


def _site_of(path: Path, tree: MappingNode) -> Site:
    site = build(Site, tree)
    check_own_name(site.name, path, tree)
    check_site(site, tree)
    schema = job_class(config_class(Train().task))
    defaults = expand_section(site.defaults, schema)
    for name in _NOT_FOR_SITES:
        if defaults.has(name):
            raise ConfigError(
                f"defaults.{name}: a site cannot choose it",
                where=defaults.place(name),
                hint="it belongs in the job file",
            )
    # Built only to be checked, with its paths as they are written: the job file may have others. A
    # job needs a name, which is the job file's to give.
    named = MappingNode(
        {"name": Scalar("any", "", quoted=True), **defaults.entries}, defaults.where
    )
    build(schema, named, prefix="defaults")
    return dataclasses.replace(site, name=path.stem, defaults=defaults)


def site_files() -> dict[str, Path]:
    """Every site by name: `$HPC_AMP_SITES`, `~/.config/hpc-amp/sites`, then what ships with
    hpc-amp. A name that is found twice means the first of them."""
    return named_files("sites")


def find_site(
    name: str = "auto",
    *,
    hostname: str | None = None,
    which: Which = shutil.which,
    where: str | None = None,
) -> Site:
    """The site of a name, of a path (it has a `/` or ends in `.yaml`), or `auto`.

    `auto` is the first site with a pattern in `hosts` that fits this machine's full name, else the
    generic one of the scheduler that is installed and configured here, else `local`. The generic
    one has the scheduler's name, and may have no file. `where` is the place that gave the name, for
    errors. Raises ConfigError for an unknown name and for a site file with an error.
    """
    if "/" in name or name.endswith((".yaml", ".yml")):
        return load_site(Path(name))
    files = site_files()
    if name == "auto":
        return _site_of_this_machine(files, hostname, which)
    if name not in files and name in SCHEDULERS:
        return _generic(name, files)
    check_known(name, files, key="site", what="site", where=where)
    return load_site(files[name])


def load_for_site(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    hostname: str | None = None,
    which: Which = shutil.which,
    code: Path | None = None,
) -> tuple[LoadedJob, Site]:
    """A job file with its overrides, and the site that it names, whose defaults lie beneath. `code`
    is as for `read_job`.

    Raises ConfigError.
    """
    source = read_job(path, overrides, code=code)
    node = source.tree.get("site")
    site = find_site(
        source.site, hostname=hostname, which=which, where=node.where if node else str(path)
    )
    return source.validate(site.defaults), site


def _site_of_this_machine(files: dict[str, Path], hostname: str | None, which: Which) -> Site:
    hosts = [hostname] if hostname else _host_names()
    for path in files.values():
        # Variables in the paths of other sites need not be set here.
        site = _site_of(path, read_file(path, "site file")[1])
        for host, pattern in itertools.product(hosts, site.hosts):
            if fnmatch.fnmatchcase(host.lower(), pattern.lower()):
                return load_site(path)
    for scheduler in SCHEDULERS:
        if scheduler.is_configured(which):
            return _generic(scheduler.name, files)
    return load_site(files[HERE])


def _generic(scheduler: str, files: dict[str, Path]) -> Site:
    """The site of a scheduler's name: without a file, one with all defaults."""
    if scheduler in files:
        return load_site(files[scheduler])
    return Site(name=scheduler, scheduler=scheduler)


def _host_names() -> list[str]:
    """This host's names. DNS, which may be slow, is asked only where the host knows a short one."""
    name = socket.gethostname()
    return [name] if "." in name else [name, socket.getfqdn()]
