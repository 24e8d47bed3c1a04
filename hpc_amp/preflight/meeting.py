"""The preflight: every node checks itself, and the first node reports the results.

`hpc_amp/host/preflight.sh` starts this once on each node, through the job's launcher. The nodes
send their results to the first node, over the address and port that the ranks will use. The first
node reports each finding once, with the nodes that have it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from hpc_amp.config.units import parse_duration
from hpc_amp.distributed.world import WorldError
from hpc_amp.files import write_json
from hpc_amp.finding import Finding, Findings
from hpc_amp.preflight.node import Node, some
from hpc_amp.preflight.node_checks import look

_MIB = 2**20
_WAIT = 120.0
"""Seconds to wait for the results of all nodes; `launch.timeout` if that is shorter."""
_SKEW = 10.0
"""Seconds by which the nodes' clocks may differ."""


def main(job: str, resolved: Mapping[str, Any], folder: str) -> NoReturn:
    """Check this node, send the results to the first node, and write a report into `folder`.

    `job` is the path of job.json, and `resolved` its contents. The process always exits with 0,
    also after errors: otherwise mpirun would kill the tasks of the other nodes.
    """
    started = time.monotonic()
    lines = (line.partition("=") for line in os.environ.get("HPC_AMP_OUTSIDE", "").splitlines())
    environ = {name: value for name, value in os.environ.items() if name != "HPC_AMP_OUTSIDE"}
    node = Node(
        resolved=resolved,
        run_dir=Path(job).parent,
        environ=environ,
        outside={name: value for name, equals, value in lines if equals},
    )
    name = socket.gethostname().partition(".")[0]
    found = look(node)
    seconds = round(time.monotonic() - started, 2)
    timeout = parse_duration(resolved["job"]["launch"].get("timeout", "10m"))
    meeting = Meeting(node, Path(folder), name, limit=min(_WAIT, float(timeout)))
    try:
        if node.nodes == 1 or node.world().rank == 0:
            meeting.first(found, seconds)
        else:
            meeting.other(found, seconds)
    except WorldError:
        meeting.alone(found, seconds)
    except OSError as error:
        said = next((entry for entry in found if entry.severity == "error"), None)
        what = said.what if said else f"{folder} is not writable: {error.strerror}"
        fix = said.fix if said else "check its permissions and its file system"
        print(f"hpc-amp: preflight: fs: {what} on {name}; {fix}", file=sys.stderr)
    sys.exit(0)


class Meeting:
    """Collects the results of all nodes on the first node.

    The first node listens on MASTER_ADDR and MASTER_PORT, and the others connect to it. It also
    reads the report files in `folder`, which nodes write that cannot connect. `name` is the host
    name of this node, and `limit` the time to wait, in seconds.
    """

    def __init__(self, node: Node, folder: Path, name: str, *, limit: float) -> None:
        self.node, self.folder, self.name, self.limit = node, folder, name, limit

    def first(self, found: list[Finding], seconds: float) -> None:
        """On the first node: receive and compare the results of all nodes, and report them."""
        started = time.monotonic()
        others: dict[str, dict[str, Any]] = {}
        if self.node.nodes > 1 and not _has(found, "net.name"):
            listener = None
            try:
                listener = self._listen()
            except OSError as error:
                found = [*found, self._cannot_listen(error)]
            if listener is not None:
                with listener:
                    others = self._hear(listener)
                found += self._compare(others)
        elif self.node.nodes == 1:
            found = [*found, *self._try_port()]
        self._write(f"preflight-{self.name}.json", self._report(found, seconds))
        grouped = _group({self.name: found, **{n: r["findings"] for n, r in others.items()}})
        total = round(time.monotonic() - started + seconds, 2)
        names = sorted({self.name, *others})
        report = {"nodes": names, "failed": _failed(grouped), "seconds": total}
        report["findings"] = [asdict(finding) for finding in grouped]
        _tell(grouped)
        print(_summary(grouped, len(names), total), flush=True)
        self._write("preflight.json", report)

    def other(self, found: list[Finding], seconds: float) -> None:
        """On every other node: send the results to the first node."""
        if _has(found, "net.name"):
            self.alone(found, seconds)
            return
        try:
            delivered = self._deliver(found, seconds)
        except OSError as error:
            address, port = self.node.master
            what = (
                f"cannot connect to the first node at {address}:{port}: {error.strerror or error}"
            )
            why = "all ranks connect to this address, and would wait for each other"
            fix = "check for a firewall; `address` of the site chooses another network"
            found = [*found, Finding("net.reach", "error", what, why, fix)]
            delivered = False
        self._write(f"preflight-{self.name}.json", self._report(found, seconds))
        if not delivered:
            _tell(_group({self.name: found}))

    def alone(self, found: list[Finding], seconds: float) -> None:
        """Report the results of this node in its own log.

        Used if the first node cannot be reached, or if the rank of this node is not known.
        """
        self._write(f"preflight-{self.name}.json", self._report(found, seconds))
        _tell(_group({self.name: found}))

    # -- the first node

    def _listen(self) -> socket.socket:
        address, port = self.node.master
        info = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(info[0], info[1])
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(info[4])
            listener.listen(1024)
        except OSError:
            listener.close()
            raise
        return listener

    def _cannot_listen(self, error: OSError) -> Finding:
        address, port = self.node.master
        if error.errno == errno.EADDRNOTAVAIL:
            what = f"MASTER_ADDR {address} is not an address of the first node"
            fix = "check `address` of the site, and launch.args for options that move rank 0"
            return Finding("net.name", "error", what, "rank 0 listens on it", fix)
        if isinstance(error, socket.gaierror):
            what = f"MASTER_ADDR {address} cannot be resolved: {error.strerror}"
            fix = "check `address` of the site, and /etc/hosts of the node and the image"
            return Finding("net.name", "error", what, "rank 0 listens on it", fix)
        what = f"port {port} of {address} is not available: {error.strerror}"
        fix = "find the process that uses it (ss -ltnp); a new attempt uses another port"
        return Finding("net.port", "error", what, "all ranks connect to it", fix)

    def _try_port(self) -> Findings:
        if not self.node.master[0] or self.node.ranks == 1:
            return  # no rank connects to another
        try:
            self._listen().close()
        except OSError as error:
            yield self._cannot_listen(error)

    def _hear(self, listener: socket.socket) -> dict[str, dict[str, Any]]:
        """The reports of the other nodes, received over the network or read from their files."""
        heard: dict[str, dict[str, Any]] = {}
        until = time.monotonic() + self.limit
        listener.settimeout(0.2)
        while len(heard) < self.node.nodes - 1 and time.monotonic() < until:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                heard.update(self._read_files(heard))
                continue
            with connection, contextlib.suppress(OSError, ValueError, KeyError):
                connection.settimeout(10)
                report = json.loads(_read_all(connection))
                report["late"] = time.time() - float(report["time"])
                heard[report["node"]] = report
                connection.sendall(b"heard\n")
                # The other node closes first, so that TIME_WAIT does not keep this port in use.
                connection.recv(1)
        for report in heard.values():
            report["findings"] = [Finding(**entry) for entry in report["findings"]]
        return heard

    def _read_files(self, heard: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        found = {}
        for path in self.folder.glob("preflight-*.json"):
            name = path.stem.partition("-")[2]
            if name != self.name and name not in heard:
                with contextlib.suppress(OSError, ValueError):
                    found[name] = json.loads(path.read_text())
        return found

    def _compare(self, others: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
        found = []
        silent = self.node.nodes - 1 - len(others)
        if silent:
            what = f"{silent} node(s) did not answer within {self.limit:.0f} s{self._names(others)}"
            why = "their ranks would not start, or could not connect"
            fix = "look for their messages in the log; exclude them, or raise launch.timeout"
            found.append(Finding("net.reach", "error", what, why, fix))
        elif not any(_has(report["findings"], "net.reach") for report in others.values()):
            what = "every node can connect to the first one"
            found.append(Finding("net.reach", "good", what))
        own = snapshot(self.node.run_dir)
        wrong = sorted(n for n, report in others.items() if report.get("snapshot", own) != own)
        if wrong:
            what = f"{', '.join(wrong)}: the code of the run differs from that on the first node"
            why = "ranks with different code hang or compute different results"
            fix = "submit again; the file systems differ, or their caches are out of date"
            found.append(Finding("code", "error", what, why, fix))
        else:
            found.append(Finding("code", "good", "every node sees the same code"))
        late = {n: report["late"] for n, report in others.items() if "late" in report}
        off = {n: -seconds for n, seconds in late.items() if abs(seconds) > _SKEW}
        if off:
            shown = ", ".join(f"{n} by {seconds:+.0f} s" for n, seconds in sorted(off.items()))
            what = f"clocks differ from that of the first node: {shown}"
            why = "a rank uses its own clock to stop before the time limit"
            fix = "report it to an administrator (chronyc tracking), and raise job.stop_margin"
            found.append(Finding("clock", "warning", what, why, fix))
        elif late:
            found.append(Finding("clock", "good", "the nodes' clocks agree"))
        return found

    def _names(self, others: Mapping[str, Any]) -> str:
        """The names of the nodes that did not answer, as the end of a message.

        Empty if the names in the node file are not the host names of the nodes.
        """
        try:
            listed = [line.partition(".")[0] for line in self._node_file()]
        except OSError:
            return ""
        silent = [name for name in listed if name not in others and name != self.name]
        fits = len(silent) == self.node.nodes - 1 - len(others)
        return f": {some(silent)}" if fits else ""

    def _node_file(self) -> list[str]:
        return (self.folder / "nodes").read_text().split()

    # -- the others

    def _deliver(self, found: list[Finding], seconds: float) -> bool:
        """Send the report to the first node.

        Returns False if the first node has written its own report, which means that it no longer
        listens. Raises OSError if no connection is possible until the time limit.
        """
        until = time.monotonic() + self.limit
        first = ""
        with contextlib.suppress(OSError, IndexError):
            first = self._node_file()[0].partition(".")[0]
        while True:
            try:
                with socket.create_connection(self.node.master, timeout=5) as connection:
                    report = self._report(found, seconds)
                    report["snapshot"] = snapshot(self.node.run_dir)
                    report["time"] = time.time()
                    connection.sendall(json.dumps(report).encode())
                    connection.shutdown(socket.SHUT_WR)
                    connection.settimeout(self.limit)
                    if connection.recv(16):
                        return True
            except OSError:
                if time.monotonic() > until:
                    raise
            if first and (self.folder / f"preflight-{first}.json").exists():
                return False
            time.sleep(0.2)

    # -- both

    def _report(self, found: list[Finding], seconds: float) -> dict[str, Any]:
        placed = [asdict(finding) | {"where": self.name} for finding in found]
        failed = _failed(_group({self.name: found}))
        return {"node": self.name, "failed": failed, "seconds": seconds, "findings": placed}

    def _write(self, name: str, report: Mapping[str, Any]) -> None:
        # The script reads the line with `failed`.
        write_json(self.folder / name, report)


def _has(found: list[Finding], id: str) -> bool:
    return any(finding.id == id and finding.severity == "error" for finding in found)


def _read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
        if sum(map(len, parts)) > 8 * _MIB:
            raise ValueError("this is not a report")
    return b"".join(parts)


_ORDER = ("error", "warning", "unknown", "good")


def _group(reports: Mapping[str, list[Finding]]) -> list[Finding]:
    """Merge equal findings of several nodes; sort them so that errors come first."""
    nodes: dict[Finding, list[str]] = {}
    for name, findings in reports.items():
        for finding in findings:
            plain = Finding(finding.id, finding.severity, finding.what, finding.why, finding.fix)
            nodes.setdefault(plain, []).append(name)
    every = len(reports)
    merged = []
    for finding, names in nodes.items():
        where = "every node" if len(names) == every > 1 else some(sorted(names))
        merged.append(Finding(**{**asdict(finding), "where": where}))
    return sorted(merged, key=lambda finding: _ORDER.index(finding.severity))


def _failed(grouped: list[Finding]) -> str:
    """The first error as one line, or an empty text."""
    first = next((finding for finding in grouped if finding.severity == "error"), None)
    return f"{first.id}: {first.what} on {first.where}" if first else ""


def _tell(grouped: list[Finding]) -> None:
    for finding in grouped:
        if finding.severity in ("error", "warning"):
            mark = "WARNING: " if finding.severity == "warning" else ""
            text = f"{finding.id}: {finding.what} on {finding.where}: {finding.why}; {finding.fix}"
            print(f"hpc-amp: {mark}preflight: {' '.join(text.split())}", file=sys.stderr)


def _summary(grouped: list[Finding], nodes: int, seconds: float) -> str:
    ids: dict[str, set[str]] = {severity: set() for severity in _ORDER}
    for finding in grouped:
        ids[finding.severity].add(finding.id)
    parts = [f"{len(ids['good'])} checks good"]
    for severity, title in (("error", "error"), ("warning", "warning"), ("unknown", "not checked")):
        if ids[severity]:
            parts.append(f"{title}: {', '.join(sorted(ids[severity]))}")
    return f"preflight: {nodes} node(s) in {seconds:.1f} s: {'; '.join(parts)}"


def snapshot(run_dir: Path) -> str:
    """A hash of the run's copy of hpc_amp, to compare it between nodes."""
    digest = hashlib.sha256()
    folder = run_dir / "src"
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
