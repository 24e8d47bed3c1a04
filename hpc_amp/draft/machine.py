"""What this machine itself shows about its cluster, for the draft of a site file: names, container
runtimes, modules, network interfaces, file systems."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from hpc_amp.clients import Clients
from hpc_amp.config.site_draft import SiteDraft
from hpc_amp.containers import CONTAINERS

# File systems that several machines see.
_SHARED = {
    *("lustre", "gpfs", "nfs", "nfs4", "beegfs", "beegfs_nodev", "wekafs", "ceph", "panfs", "dvs"),
    *("pvfs2", "glusterfs", "fuse.glusterfs", "fuse.juicefs", "virtiofs"),
}
# Images have their own of these, or hpc-amp mounts them anyway.
_NOT_BOUND = re.compile(r"/|/(usr|var|etc|bin|sbin|lib|lib64|boot|run|root|dev|proc|sys|tmp)(/.*)?")
_VIRTUAL = re.compile(
    r"lo|docker|veth|br-|virbr|cni|flannel|cali|tun|tap|dummy|sit\d|tunl\d|ip6tnl"
)
_MPI = {
    *("openmpi", "hpcx", "cray-mpich", "cray-mpich-abi", "mpich", "mvapich2", "mvapich"),
    *("intel-oneapi-mpi", "impi", "intelmpi", "intel-mpi"),
}
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_MODULES = "type module >/dev/null 2>&1 || exit 0; module --terse avail 2>&1"


def draft_machine(
    draft: SiteDraft,
    clients: Clients,
    hosts: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
) -> None:
    """Add what this machine shows. `hosts` are its names, and `root` is its root folder."""
    _add_hosts(draft, hosts)
    _add_runtime(draft, clients)
    _add_fabric(draft, interfaces(root))
    _add_file_systems(draft, shared_file_systems(root))
    _add_proxies(draft, environ)


def _add_hosts(draft: SiteDraft, hosts: Sequence[str]) -> None:
    """The pattern of the login nodes' names. The last number in the first part of this machine's
    name is a wildcard."""
    full = max(hosts, key=len, default="")
    question = "What are the login nodes called? `hostname -f` prints it. `site: auto` chooses "
    question += "this file by it."
    if not full or full.startswith("localhost"):
        draft.ask("hosts", ["login*.cluster.example.org"], question)
        return
    first, dot, domain = full.partition(".")
    pattern = re.sub(r"\d+(?=\D*$)", "*", first)
    names = [f"{pattern}{dot}{domain}"]
    source = f"hostname -f: {full}. `site: auto` chooses this file where the name fits."
    if dot and pattern in hosts:
        names.append(pattern)
    if not dot:
        source += " The name has no domain: check that no other cluster has such names."
    draft.add("hosts", names, source)


def _add_runtime(draft: SiteDraft, clients: Clients) -> None:
    names = [name for name in CONTAINERS.names() if name != "auto"]
    seen = {name: CONTAINERS.get(name)().seen_here(clients) for name in names}
    found = [name for name in names if seen[name]]
    modules = module_names(clients.output("bash", "-lc", _MODULES, name="module avail"))
    shown = "; ".join(f"{name}: {seen[name]}" for name in found)
    if found:
        source = f"On this machine: {shown}. Only a node shows whether it is there too (--on-node)."
        draft.add("runtime", found[0], source)
    else:
        _add_module(draft, names, modules)
    mpi = [name for name in modules if name.partition("/")[0].lower() in _MPI]
    if mpi and draft.value("setup") is None:
        question = f"Which MPI do jobs on several nodes load? module avail: {_few(mpi)}"
        draft.ask("setup", f"module load {mpi[0].partition('/')[0]}\n", question)


def _add_module(draft: SiteDraft, names: Sequence[str], modules: Sequence[str]) -> None:
    """The module of a runtime, if this machine has none on PATH."""
    for name in names:
        container = CONTAINERS.get(name)
        words = {name, *container.binaries} if container.uses_image else set()
        fitting = [one for one in modules if words & set(one.lower().split("/"))]
        if fitting:
            draft.add("runtime", name, f"module avail: {_few(fitting)}")
            source = "No container runtime is on PATH here, and module avail has one."
            draft.add("setup", f"module load {_without_version(fitting[0], words)}\n", source)
            return
    draft.ask(
        "runtime",
        "apptainer",
        "Which container runtime do the nodes have? None is on this machine, and no module has its "
        "name. Look with --on-node, or in the guide of the cluster under containers.",
    )


def _without_version(module: str, words: Set[str]) -> str:
    """The name under which `module load` finds the default version: up to the part in `words`."""
    parts = module.split("/")
    last = next(at for at, part in enumerate(parts) if part.lower() in words)
    return "/".join(parts[: last + 1])


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")


def module_names(text: str) -> list[str]:
    """The modules in the output of `module --terse avail`, of Lmod or of Tcl's modules. A line
    that ends with a colon names a folder; marks such as `(default)` and `(L)` are removed."""
    found = []
    for line in text.splitlines():
        word = re.sub(r"(\s*(\([^)]*\)|<[^>]*>))+$", "", line.strip()).rstrip("/")
        if re.fullmatch(r"[A-Za-z0-9][\w.+/-]*", word) and not line.rstrip().endswith(":"):
            found.append(word)
    return list(dict.fromkeys(found))


def interfaces(root: Path = Path("/")) -> list[str]:
    """The network interfaces, without those of this machine alone."""
    try:
        names = sorted(os.listdir(root / "sys/class/net"))
    except OSError:
        return []
    return [name for name in names if is_network(name)]


def is_network(name: str) -> bool:
    """Whether an interface leads to other machines, judged by its name."""
    return not _VIRTUAL.match(name)


def fabric_of(names: Sequence[str]) -> str | None:
    """The fabric profile for a machine with these interfaces, or None for one with Ethernet."""
    if any(re.fullmatch(r"hsn\d+", name) for name in names):
        return "slingshot"
    return "ib" if any(re.match(r"ib(\d|p|s)", name) for name in names) else None


def _add_fabric(draft: SiteDraft, names: Sequence[str]) -> None:
    profile = fabric_of(names)
    seen = f"This machine has {_few(names) or 'no interface'} (/sys/class/net)."
    if profile is not None:
        question = f"{seen} Do the nodes have this network too? --on-node looks."
        draft.ask("fabric", profile, question)
    else:
        question = f"Which network connects the nodes? {seen} --on-node looks at a node."
        draft.ask("fabric", "ib", question)


def shared_file_systems(root: Path = Path("/")) -> dict[str, str]:
    """The shared file systems that are mounted, with their types. Those that a container does not
    need are left out."""
    try:
        lines = (root / "proc/mounts").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return shared_mounts(lines)


def shared_mounts(lines: Sequence[str]) -> dict[str, str]:
    """The shared file systems in the lines of /proc/mounts."""
    found: dict[str, str] = {}
    for line in lines:
        words = line.split()
        if len(words) < 3 or words[2] not in _SHARED:
            continue
        place = words[1]
        if re.fullmatch(r"[\w./+@-]+", place) and not _NOT_BOUND.fullmatch(place):
            found.setdefault(place, words[2])
    return {
        place: kind
        for place, kind in found.items()
        if not any(place.startswith(f"{other}/") for other in found)
    }


def _add_file_systems(draft: SiteDraft, mounts: Mapping[str, str]) -> None:
    if not mounts:
        question = "Which file systems do jobs need? This machine has none that is shared by its "
        question += "type (/proc/mounts). The run directory and the working directory are bound "
        draft.ask("bind", ["/scratch"], question + "anyway.")
        return
    shown = ", ".join(f"{place} ({kind})" for place, kind in mounts.items())
    question = f"Which of these do jobs need, and are they on the nodes (--on-node looks)? {shown}"
    draft.ask("bind", list(mounts)[:12], question)


def _add_proxies(draft: SiteDraft, environ: Mapping[str, str]) -> None:
    found = {name: environ[name] for name in _PROXIES if environ.get(name)}
    # A proxy may contain a password.
    found = {name: value for name, value in found.items() if "@" not in value}
    if found:
        question = "This shell has a proxy. Do jobs need it to reach the Internet?"
        draft.ask("env", found, question)
