"""Find the site of a job: by name, by path, or from the machine that submits."""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hpc_amp.config.build import build
from hpc_amp.config.checks import check_site
from hpc_amp.config.folders import check_known, check_own_name, named_files
from hpc_amp.config.keys import expand_section
from hpc_amp.config.load import JobSource, JobText, LoadedJob, read_job
from hpc_amp.config.paths import expand_paths
from hpc_amp.config.schema import Train, job_class
from hpc_amp.config.site import Site
from hpc_amp.config.source import read_file
from hpc_amp.config.tree import MappingNode, Scalar
from hpc_amp.errors import ConfigError
from hpc_amp.resources import Which, which
from hpc_amp.schedulers import SCHEDULERS, configured
from hpc_amp.tasks.registry import config_class

HERE = "local"
"""The site of a machine without a scheduler."""

_NOT_FOR_SITES = ("name", "site", "code", "run", "train.task")


def load_site(path: Path) -> Site:
    """Read a site file. Raises ConfigError if it cannot be read or is wrong."""
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
    # The defaults are built only to check them. Their paths are not expanded here, because a job
    # file may replace them. `name` is required in a job and cannot be a default.
    named = MappingNode(
        {"name": Scalar("any", "", quoted=True), **defaults.entries}, defaults.where
    )
    build(schema, named, prefix="defaults")
    return dataclasses.replace(site, name=path.stem, defaults=defaults)


def site_files() -> dict[str, Path]:
    """The files of all sites by name, from `$HPC_AMP_SITES`, `~/.config/hpc-amp/sites` and the
    installation, in this order. If two files have the same name, the first one counts."""
    return named_files("sites")


class KnownSite(NamedTuple):
    """A line of `hpc-amp site list`."""

    name: str
    scheduler: str
    text: str
    """Its description, or the error of its file."""
    path: Path | None
    """Its file. None for a scheduler without one."""
    is_here: bool
    """Whether `site: auto` is this site on this machine."""

    @property
    def folder(self) -> str:
        """The folder of its file; empty without one."""
        return "" if self.path is None else str(self.path.parent)

    def to_plain(self) -> dict[str, str | bool | None]:
        """For JSON."""
        path = None if self.path is None else str(self.path)
        return {
            "name": self.name,
            "scheduler": self.scheduler,
            "description": self.text,
            "path": path,
            "auto": self.is_here,
        }


def known_sites() -> list[KnownSite]:
    """All sites that can be named, in the order in which they are searched, then the schedulers
    without a file."""
    files = site_files()
    try:
        here = find_site().name
    except ConfigError:
        here = ""  # a wrong file, which its own line shows
    found = []
    for name, path in files.items():
        try:
            # Paths are not expanded: the variables of other sites may not be set here.
            site = _site_of(path, read_file(path, "site file")[1])
            found.append(KnownSite(name, site.scheduler, site.description, path, name == here))
        except ConfigError as error:
            found.append(KnownSite(name, "?", str(error), path, is_here=False))
    for name in SCHEDULERS.names():
        if name not in files:
            found.append(KnownSite(name, name, "", None, name == here))
    return found


def path_of(site: Site, given: str) -> Path | None:
    """The file of a site that `find_site(given)` returned; None if it has none."""
    if "/" in given or given.endswith((".yaml", ".yml")):
        return Path(given)
    return site_files().get(site.name)


def find_site(
    name: str = "auto",
    *,
    hostname: str | None = None,
    which: Which = which,
    where: str | None = None,
) -> Site:
    """Find a site. `name` is the name of a site, the path of a site file (it contains `/` or ends
    in `.yaml`), or `auto`.

    `auto` is the first site with a pattern in `hosts` that matches this machine's full name. If
    none matches, it is the generic site of the scheduler that is installed and configured here, or
    `local` without one. A generic site has the name of its scheduler and needs no file. All files
    are read for this, and a wrong key or value in any of them is an error: it may be the misspelt
    `hosts` of this machine's site. What needs its scheduler is checked for the chosen site only.

    `hostname` replaces this machine's name, and `which` the search in PATH. `where` is the place
    that gave `name`, for errors. Raises ConfigError if the name is unknown or the site file is
    wrong.
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
    file: Path | JobText,
    overrides: Sequence[str] = (),
    *,
    hostname: str | None = None,
    which: Which = which,
    code: Path | None = None,
) -> tuple[LoadedJob, Site]:
    """Read a job file with its overrides, find its site, and validate the job with the site's
    defaults. `hostname` and `which` are as for `find_site`, and `code` as for `read_job`.

    Raises ConfigError.
    """
    source = read_job(file, overrides, code=code)
    site = site_of(source, hostname=hostname, which=which)
    return source.validate(site.defaults), site


def site_of(source: JobSource, *, hostname: str | None = None, which: Which = which) -> Site:
    """The site that a job file names. `hostname` and `which` are as for `find_site`. Raises
    ConfigError at the line that names it."""
    node = source.tree.get("site")
    where = node.where if node else str(source.path)
    return find_site(source.site, hostname=hostname, which=which, where=where)


def _site_of_this_machine(files: dict[str, Path], hostname: str | None, which: Which) -> Site:
    hosts = [hostname] if hostname else host_names()
    for path in files.values():
        # Only what concerns the file alone is checked, not whether its scheduler, its fabric and
        # the tasks fit: that takes long. Its paths may have variables that are not set here.
        site = build(Site, read_file(path, "site file")[1])
        for host, pattern in itertools.product(hosts, site.hosts):
            if fnmatch.fnmatchcase(host.lower(), pattern.lower()):
                return load_site(path)
    for scheduler in configured(which):
        return _generic(scheduler.name, files)
    return load_site(files[HERE])


def _generic(scheduler: str, files: dict[str, Path]) -> Site:
    """The generic site of a scheduler: from its file, or with all defaults if it has none."""
    if scheduler in files:
        return load_site(files[scheduler])
    return Site(name=scheduler, scheduler=scheduler)


def host_names() -> list[str]:
    """This host's names. DNS, which may be slow, is asked only if the host's name is not a full
    one."""
    import socket  # only for `site: auto`

    name = socket.gethostname()
    return [name] if "." in name else [name, socket.getfqdn()]
