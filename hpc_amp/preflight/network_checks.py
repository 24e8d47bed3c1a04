"""The network checks of the preflight, for one node."""

from __future__ import annotations

import glob
import os
import resource
import socket

from hpc_amp.finding import Finding, Findings
from hpc_amp.preflight.node import Node, listed

_MIB = 2**20


def check_names(node: Node) -> Findings:
    """Check that MASTER_ADDR, the address of the first node, resolves on this node."""
    name, _ = node.master
    if node.nodes == 1 or not name:
        return
    why = "all ranks connect to it"
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(name, None)}
    except OSError as error:
        what = (
            f"MASTER_ADDR {name!r} cannot be resolved in the container: {error.strerror or error}"
        )
        fix = "check /etc/hosts and /etc/resolv.conf in the container, and `address` of the site"
        yield Finding("net.name", "error", what, why, fix)
        return
    loops = sorted(address for address in found if address.startswith("127.") or address == "::1")
    if loops and len(loops) == len(found):
        what = f"MASTER_ADDR {name} resolves to {', '.join(loops)}, which is this node itself"
        fix = (
            "ask for a correction of /etc/hosts, or choose another name with `address` of the site"
        )
        yield Finding("net.name", "error", what, why, fix)
    else:
        yield Finding("net.name", "good", f"{name} resolves to {', '.join(sorted(found))}")


def check_port(node: Node) -> Findings:
    """Check that MASTER_PORT is outside the range of ephemeral ports."""
    _, port = node.master
    if not port:
        return
    try:
        low, high = map(int, node.at("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    except (OSError, ValueError):
        yield Finding("net.port", "unknown", "the range of ephemeral ports cannot be read")
        return
    if low <= port <= high:
        what = f"port {port} is in the range of ephemeral ports ({low} to {high})"
        why = "another connection may use it already"
        fix = "ask for net.ipv4.ip_local_port_range to end at 60999, which is the default"
        yield Finding("net.port", "warning", what, why, fix)
    else:
        yield Finding("net.port", "good", f"port {port} is outside {low} to {high}")


def check_interfaces(node: Node, names: list[str] | None = None) -> Findings:
    """Check that the network interfaces that are set for NCCL and gloo exist.

    `names` are the interfaces of this node; by default the system is asked.
    """
    if names is None:
        names = [name for _, name in socket.if_nameindex()]
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = node.program.get(variable)
        if not value:
            continue
        usable = interfaces(value, names, exact=variable.startswith("GLOO"))
        if usable:
            yield Finding("net.if", "good", f"{variable}={value} selects {', '.join(usable)}")
            continue
        source = _set_by(node, variable)
        used = node.nodes > 1 and (
            variable.startswith("GLOO") or (node.gpus > 0 and node.at("/dev/nvidiactl").exists())
        )
        what = (
            f"{variable}={value} ({source}) selects no interface of this node; it has "
            f"{', '.join(names)}"
        )
        fix = f"set {variable} in container.env to one of them, or to an empty value"
        why = "the ranks could not connect"
        yield Finding("net.if", "error" if used else "warning", what, why, fix)


def interfaces(value: str, names: list[str], *, exact: bool = False) -> list[str]:
    """Return the interfaces in `names` that a value of NCCL_SOCKET_IFNAME selects.

    The value is a list of prefixes, or of whole names after `=`; after `^` it is a list of what is
    excluded. With `exact`, the names are always whole, as for gloo. NCCL uses `lo` only if the
    value names it.
    """
    excluded = value.startswith("^")
    text = value[1:] if excluded else value
    if text.startswith("="):
        exact, text = True, text[1:]
    parts = [part for part in text.split(",") if part]
    fits = [
        name for name in names if any(name == p if exact else name.startswith(p) for p in parts)
    ]
    return [name for name in names if name not in fits and name != "lo"] if excluded else fits


def check_infiniband(node: Node) -> Findings:
    """Check that the container can use the node's InfiniBand."""
    if node.nodes == 1 or node.gpus == 0:
        return
    cards = listed(node.at("/sys/class/infiniband"))
    if not cards:
        return
    why = "NCCL would use slow TCP without a warning"
    lacks = []
    if not [name for name in listed(node.at("/dev/infiniband")) if name.startswith("uverbs")]:
        lacks.append("/dev/infiniband is not in the container")
    folders = ["/usr/lib*", "/usr/lib/*-linux-gnu", "/lib*", "/usr/local/lib"]
    folders += [*filter(None, (node.program.get("LD_LIBRARY_PATH") or "").split(os.pathsep))]
    if not any(glob.glob(str(node.at(folder)) + "/libibverbs.so*") for folder in folders):
        lacks.append("the image has no libibverbs")
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft != resource.RLIM_INFINITY and soft < 64 * _MIB:
        lacks.append(f"only {soft // 1024} KiB of memory may be locked (ulimit -l)")
    if lacks:
        fix = "bind what is missing; a limit must be raised for the scheduler's daemon on the node"
        what = f"the node has {', '.join(cards)}, but {'; '.join(lacks)}"
        yield Finding("net.ib", "warning", what, why, fix)
    else:
        yield Finding("net.ib", "good", f"{', '.join(cards)} can be used")


def _set_by(node: Node, variable: str) -> str:
    """Where a variable is set, as text for the message."""
    if variable in node.job["container"]["env"]:
        return "from container.env, the site or its fabric profile"
    if node.outside.get(variable) == node.environ.get(variable):
        return "from the script's environment"
    return "from the image"
