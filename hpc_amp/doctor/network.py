"""`hpc-amp doctor --network`: a small job that measures the network between nodes."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_amp.config.checks import check_job
from hpc_amp.config.load import JobText
from hpc_amp.config.schema import Job, Restarts
from hpc_amp.config.sites import load_for_site
from hpc_amp.errors import to_type
from hpc_amp.finding import Finding, to_text
from hpc_amp.jobs import rundir
from hpc_amp.jobs.follow import follow
from hpc_amp.jobs.plan import make_plan
from hpc_amp.jobs.status import RunStatus
from hpc_amp.jobs.submit import submit

_RESULT = "bandwidth.json"
_LOGS = "nccl"

# Lines of NCCL at NCCL_DEBUG=INFO: the network that it chose, and the transport of each channel.
_USING = re.compile(
    r"NCCL INFO (?:Using network|Assigned NET plugin) (?P<name>.+?)(?: to comm)?\s*$"
    r"|NCCL INFO (?P<short>NET/\S+) : Using"
)
_CHANNEL = re.compile(r"NCCL INFO Channel .* via (?P<way>\S+)")
_CARD = re.compile(r"/sys/class/infiniband|mlx5_|hsn\d")


@dataclass(frozen=True, slots=True)
class NetworkMeasurement:
    """The result of the job and its finding."""

    facts: dict[str, Any]
    """The contents of bandwidth.json; empty if the job did not write it."""
    network: str | None
    """The network between nodes that NCCL reports, or None."""
    ways: list[str]
    """The transports of NCCL's channels: P2P, SHM, NET/IB/0/GDRDMA, ..."""
    finding: Finding
    run_dir: Path

    @property
    def rows(self) -> list[dict[str, float]]:
        """Time (µs) and bus bandwidth (GB/s) of an all-reduce for each message size (bytes).

        The bus bandwidth is the rate on each link: it does not depend on the number of ranks.
        """
        ranks = int(self.facts.get("ranks", 1))
        factor = 2 * (ranks - 1) / ranks
        return [
            {
                "bytes": row["bytes"],
                "microseconds": round(row["seconds"] * 1e6, 1),
                "bus_gigabytes_per_second": round(row["bytes"] / row["seconds"] * factor / 1e9, 4),
            }
            for row in self.facts.get("sizes", [])
        ]

    def to_plain(self) -> dict[str, Any]:
        """For JSON."""
        kept = ("ranks", "nodes", "device", "backend", "join_seconds")
        return {
            **{name: self.facts.get(name) for name in kept},
            "network": self.network,
            "ways": self.ways,
            "sizes": self.rows,
            "finding": self.finding.to_plain(),
            "run_dir": str(self.run_dir),
        }

    def to_text(self) -> str:
        """For people: a table, the finding, and the run directory."""
        lines = []
        if self.facts:
            f = self.facts
            lines.append(
                f"{f['ranks']} ranks on {f['nodes']} nodes, {f['device']}, {f['backend']}; "
                f"they connected in {f['join_seconds']:.1f} s"
            )
            lines.append(f"{'bytes':>12}  {'time':>12}  {'bus bandwidth':>16}")
            for row in self.rows:
                lines.append(
                    f"{row['bytes']:>12.0f}  {row['microseconds']:>9.1f} us  "
                    f"{row['bus_gigabytes_per_second']:>11.3f} GB/s"
                )
        lines.append(to_text([self.finding]).splitlines()[0])
        if self.finding.severity != "good":
            lines += [f"      {text}" for text in self.finding.details()]
        lines.append(f"run directory {self.run_dir}")
        return "\n".join(lines)


def measure(
    config: Path | JobText, overrides: Sequence[str], say: Callable[[str], object]
) -> NetworkMeasurement:
    """Submit the job, wait until it ends, and read its result.

    `say` receives lines about the progress. Raises HpcAmpError if the job cannot be submitted.
    """
    loaded, site = load_for_site(config, overrides)
    check_job(loaded, site)
    runs = Path(loaded.job.runs_dir).resolve()
    name = f"doctor-{loaded.job.name}"[:64]
    run_dir = runs / name / rundir.new_run_id()
    job = _small(loaded.job, name, run_dir)
    plan = make_plan(loaded._replace(job=job), site, run_dir)
    submission = submit(plan, loaded.text)
    say(f"submitted job {submission.job_id} ({plan.scheduler.name}), run directory {run_dir}")
    status = follow(plan.run_dir, lambda text: None, on_wait=say)
    return read(plan.run_dir, status)


def _small(job: Job, name: str, run_dir: Path) -> Job:
    """The job with the same nodes, ranks and container, ten minutes of walltime, and the program
    that measures the network."""
    resources = dataclasses.replace(
        job.resources, walltime="10m", stop_margin="1m", max_restarts=0, chain=0
    )
    # Each rank's NCCL writes to a file of its own: in one log, lines would be mixed.
    env = {
        **job.container.env,
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH",
        "NCCL_DEBUG_FILE": str(run_dir / f"{_LOGS}-%h-%p.log"),
    }
    program = ["python", "-m", "hpc_amp.distributed.bandwidth", str(run_dir / _RESULT)]
    return dataclasses.replace(
        job,
        name=name,
        resources=resources,
        container=dataclasses.replace(job.container, env=env),
        restarts=Restarts(),
        train=None,
        run=program,
        code=None,
    )


def read(run_dir: Path, status: RunStatus) -> NetworkMeasurement:
    """Read the result of a job that has ended, from its run directory."""
    try:
        facts: dict[str, Any] = json.loads((run_dir / _RESULT).read_text())
    except (OSError, ValueError):
        facts = {}
    lines: list[str] = []
    for path in sorted(run_dir.glob(f"{_LOGS}-*.log")):
        lines += path.read_text(errors="replace").splitlines()
    network, ways = transport(lines)
    return NetworkMeasurement(facts, network, ways, _judge(facts, status, network, lines), run_dir)


def transport(lines: Iterable[str]) -> tuple[str | None, list[str]]:
    """The network between nodes and the transports of all channels, from NCCL's log lines."""
    network: str | None = None
    ways: set[str] = set()
    for line in lines:
        using = _USING.search(line)
        if using:
            network = using["name"] or network or using["short"]
        channel = _CHANNEL.search(line)
        if channel:
            ways.add(channel["way"])
    return network, sorted(ways)


def _judge(
    facts: dict[str, Any], status: RunStatus, network: str | None, lines: list[str]
) -> Finding:
    if not facts:
        what = f"the job gave no result: {status.state}"
        what += f" ({status.reason})" if status.reason else ""
        why = "the ranks may not reach each other"
        fix = to_type("explain", status.run_dir)
        return Finding("net.nccl", "error", what, why, fix, "network")
    if facts["device"] != "cuda":
        what = f"an all-reduce over {facts['nodes']} node(s) through {facts['backend']} works"
        if facts["nodes"] > 1:
            what += "; NCCL cannot be checked: the ranks had no GPU"
        return Finding("net.nccl", "good", what, where="network")
    if facts["nodes"] == 1:
        return Finding("net.nccl", "good", "all-reduce on one node works", where="network")
    slow = network is not None and re.fullmatch(r"(NET/)?Socket", network) is not None
    if slow and any(_CARD.search(line) for line in lines):
        what = "NCCL uses TCP (NET/Socket), although the nodes have a faster network"
        why = "an all-reduce is many times slower than it could be"
        fix = "see launch.fabric; the container also needs /dev/infiniband and the fabric's library"
        return Finding("net.nccl", "warning", what, why, fix, "network")
    if slow:
        what = "NCCL uses TCP (NET/Socket)"
        why = "TCP is slow; this is correct only if the nodes have no faster network"
        fix = "if they have InfiniBand or Slingshot, set launch.fabric"
        return Finding("net.nccl", "warning", what, why, fix, "network")
    return Finding(
        "net.nccl", "good", f"NCCL uses {network or 'a network it does not name'}", where="network"
    )
