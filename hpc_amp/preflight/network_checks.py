"""The checks of a node's network, as its ranks will use it."""

from __future__ import annotations

import glob
import os
import resource
import socket

from hpc_amp.preflight.node import CheckResult, Findings, Node, listed

_MIB = 2**20


def check_names(node: Node) -> Findings:
    """Whether every node finds the first one by the name that the ranks will use."""
    name, _ = node.master
    if node.nodes == 1 or not name:
        return
    why = "the ranks meet there"
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(name, None)}
    except OSError as error:
        what = f"MASTER_ADDR {name!r} has no address inside: {error.strerror or error}"
        fix = "see /etc/hosts and /etc/resolv.conf inside, and `address` of the site"
        yield CheckResult("net.name", "error", what, why, fix)
        return
    loops = sorted(address for address in found if address.startswith("127.") or address == "::1")
    if loops and len(loops) == len(found):
        what = f"MASTER_ADDR {name} is {', '.join(loops)} here, which is this node itself"
        fix = "have /etc/hosts mended, or give another name: `address` of the site"
        yield CheckResult("net.name", "error", what, why, fix)
    else:
        yield CheckResult("net.name", "good", f"{name} is {', '.join(sorted(found))}")


def check_port(node: Node) -> Findings:
    """Whether the port is one that no other connection takes by chance."""
    _, port = node.master
    if not port:
        return
    try:
        low, high = map(int, node.at("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    except (OSError, ValueError):
        yield CheckResult("net.port", "unknown", "the range of ephemeral ports cannot be read")
        return
    if low <= port <= high:
        what = f"port {port} is one of those that connections take by chance here ({low} to {high})"
        why = "once in a while it will be taken already"
        fix = "ask for net.ipv4.ip_local_port_range to end at 60999, as it does by default"
        yield CheckResult("net.port", "warning", what, why, fix)
    else:
        yield CheckResult("net.port", "good", f"port {port} is outside {low} to {high}")


def check_interfaces(node: Node, names: list[str] | None = None) -> Findings:
    """Whether the network interfaces exist that NCCL and gloo are told to use."""
    if names is None:
        names = [name for _, name in socket.if_nameindex()]
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = node.program.get(variable)
        if not value:
            continue
        usable = interfaces(value, names, exact=variable.startswith("GLOO"))
        if usable:
            yield CheckResult("net.if", "good", f"{variable}={value} means {', '.join(usable)}")
            continue
        source = _set_by(node, variable)
        used = node.nodes > 1 and (
            variable.startswith("GLOO") or (node.gpus > 0 and node.at("/dev/nvidiactl").exists())
        )
        what = (
            f"{variable}={value} ({source}) is none of this node's interfaces: {', '.join(names)}"
        )
        fix = f"set {variable} to one of them in container.env, or to nothing"
        why = "the ranks would find no network"
        yield CheckResult("net.if", "error" if used else "warning", what, why, fix)


def interfaces(value: str, names: list[str], *, exact: bool = False) -> list[str]:
    """Those that a value of NCCL_SOCKET_IFNAME means: beginnings of names, whole names behind a
    `=`, all others behind a `^`. NCCL takes `lo` only where it is named."""
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
    """Whether a node's InfiniBand can be used from inside."""
    if node.nodes == 1 or node.gpus == 0:
        return
    cards = listed(node.at("/sys/class/infiniband"))
    if not cards:
        return
    why = "NCCL takes the slow way through TCP then, in silence"
    lacks = []
    if not [name for name in listed(node.at("/dev/infiniband")) if name.startswith("uverbs")]:
        lacks.append("/dev/infiniband is not inside")
    folders = ["/usr/lib*", "/usr/lib/*-linux-gnu", "/lib*", "/usr/local/lib"]
    folders += [*filter(None, (node.program.get("LD_LIBRARY_PATH") or "").split(os.pathsep))]
    if not any(glob.glob(str(node.at(folder)) + "/libibverbs.so*") for folder in folders):
        lacks.append("the image has no libibverbs")
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft != resource.RLIM_INFINITY and soft < 64 * _MIB:
        lacks.append(f"only {soft // 1024} KiB of memory may be locked (ulimit -l)")
    if lacks:
        fix = "bind what is missing; the scheduler's daemon hands the limit on to jobs"
        what = f"the node has {', '.join(cards)}, but {'; '.join(lacks)}"
        yield CheckResult("net.ib", "warning", what, why, fix)
    else:
        yield CheckResult("net.ib", "good", f"{', '.join(cards)} can be used")


def _set_by(node: Node, variable: str) -> str:
    """Who set a variable, for people."""
    if variable in node.job["container"]["env"]:
        return "from container.env, the site or its fabric profile"
    if node.outside.get(variable) == node.environ.get(variable):
        return "from the script's environment"
    return "from the image"
