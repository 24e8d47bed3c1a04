"""Which site a job runs on: by name, by path, or found out from this machine."""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Sequence
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
from hpc_amp.config.tree import Scalar, Table
from hpc_amp.errors import ConfigError
from hpc_amp.tasks.registry import config_class

Which = Callable[[str], "str | None"]
SLURM_FILES = (Path("/etc/slurm/slurm.conf"), Path("/etc/slurm-llnl/slurm.conf"))
PBS_FILE = Path("/etc/pbs.conf")
COBALT_FILE = Path("/etc/cobalt.conf")
_COBALT_COMMANDS = ("cqwait", "cqstat", "cqadm")  # only Cobalt has them; one is enough
_PBS_SERVER = re.compile(r"^\s*PBS_(SERVER|PRIMARY|SERVER_HOST_NAME)\s*=\s*\S", re.MULTILINE)
_NOT_FOR_SITES = ("name", "site", "code", "run", "train.task")


def load_site(path: Path) -> Site:
    """The site that a file describes. Raises ConfigError like a job file does."""
    _, tree = read_file(path, "site file")
    tree, expanded = expand_paths(tree, Site)
    return dataclasses.replace(_site_of(path, tree), expanded=tuple(expanded))


def _site_of(path: Path, tree: Table) -> Site:
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
    named = Table({"name": Scalar("any", "", quoted=True), **defaults.entries}, defaults.where)
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
    generic one of the scheduler that is installed and configured here (`slurm`, `pbs`, `cobalt`),
    else `local`. `where` is the place that gave the name, for errors. Raises ConfigError for an
    unknown name and for a site file with an error.
    """
    if "/" in name or name.endswith((".yaml", ".yml")):
        return load_site(Path(name))
    files = site_files()
    if name == "auto":
        return _site_of_this_machine(files, hostname, which)
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


def slurm_is_configured(which: Which = shutil.which) -> bool:
    """Whether this machine has Slurm's commands and knows a controller.

    Packages install the commands on machines of no cluster, hence the second question.
    """
    if not which("sbatch"):
        return False
    if os.environ.get("SLURM_CONF") or any(file.exists() for file in SLURM_FILES):
        return True
    scontrol = which("scontrol")
    if not scontrol:
        return False
    try:  # a "configless" cluster has no file: the controller answers all the same
        ping = subprocess.run([scontrol, "ping"], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ping.returncode == 0


def pbs_is_configured(which: Which = shutil.which) -> bool:
    """Whether this machine has the commands of PBS Professional or OpenPBS, and knows a server.

    Torque, Grid Engine, Cobalt and Slurm (in a package of its own) have a `qsub` too. None of them
    reads pbs.conf; where it has stayed behind, the company of `qsub` gives the other away.
    """
    if not (which("qsub") and which("qstat")) or _company(which, "qsub", ("qconf", "cqwait")):
        return False
    try:
        text = Path(os.environ.get("PBS_CONF_FILE") or PBS_FILE).read_text(errors="replace")
    except OSError:
        return False
    return bool(os.environ.get("PBS_SERVER")) or bool(_PBS_SERVER.search(text))


def cobalt_is_configured(which: Which = shutil.which) -> bool:
    """Whether this machine has Cobalt's commands and a configuration of it."""
    if not (which("qsub") and any(map(which, _COBALT_COMMANDS))):
        return False
    named = os.environ.get("COBALT_CONFIG_FILES")
    files = [Path(file) for file in named.split(":") if file] if named else [COBALT_FILE]
    return any(file.is_file() for file in files)


def _company(which: Which, command: str, others: Sequence[str]) -> bool:
    """Whether the folder of a command has one of the others too."""
    folder = Path(which(command) or "").parent
    found = (which(other) for other in others)
    return any(Path(path).parent == folder for path in found if path)


def _site_of_this_machine(files: dict[str, Path], hostname: str | None, which: Which) -> Site:
    hosts = [hostname] if hostname else _host_names()
    for path in files.values():
        # Variables in the paths of other sites need not be set here.
        site = _site_of(path, read_file(path, "site file")[1])
        for host, pattern in itertools.product(hosts, site.hosts):
            if fnmatch.fnmatchcase(host.lower(), pattern.lower()):
                return load_site(path)
    for name, is_configured in _SCHEDULERS.items():
        if is_configured(which):
            return load_site(files[name])
    return load_site(files["local"])


_SCHEDULERS = {
    "slurm": slurm_is_configured,
    "pbs": pbs_is_configured,
    "cobalt": cobalt_is_configured,
}


def _host_names() -> list[str]:
    """This host's names. DNS, which may be slow, is asked only where the host knows a short one."""
    name = socket.gethostname()
    return [name] if "." in name else [name, socket.getfqdn()]
