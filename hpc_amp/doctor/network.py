"""The network between the nodes of a job, measured by a small job of its own."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_amp.config.checks import check_job
from hpc_amp.config.schema import Job, Restarts
from hpc_amp.config.sites import load_for_site
from hpc_amp.finding import Finding, to_text
from hpc_amp.jobs import rundir
from hpc_amp.jobs.follow import follow
from hpc_amp.jobs.plan import make_plan
from hpc_amp.jobs.status import RunStatus
from hpc_amp.jobs.submit import submit

_RESULT = "bandwidth.json"
_LOGS = "nccl"

# What NCCL writes at NCCL_DEBUG=INFO about the network it took, and about the way of each channel.
_USING = re.compile(
    r"NCCL INFO (?:Using network|Assigned NET plugin) (?P<name>.+?)(?: to comm)?\s*$"
    r"|NCCL INFO (?P<short>NET/\S+) : Using"
)
_CHANNEL = re.compile(r"NCCL INFO Channel .* via (?P<way>\S+)")
_CARD = re.compile(r"/sys/class/infiniband|mlx5_|hsn\d")


@dataclass(frozen=True, slots=True)
class NetworkMeasurement:
    """What came out."""

    facts: dict[str, Any]
    """bandwidth.json of the job; empty where it did not get that far."""
    network: str | None
    """What NCCL says that it uses between nodes."""
    ways: list[str]
    """How NCCL's channels go: P2P, SHM, NET/IB/0/GDRDMA, ..."""
    finding: Finding
    run_dir: Path

    @property
    def rows(self) -> list[dict[str, float]]:
        """Sizes with time and bus bandwidth: what every link carries, whatever their number."""
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
        """A table, then the finding."""
        lines = []
        if self.facts:
            f = self.facts
            lines.append(
                f"{f['ranks']} ranks on {f['nodes']} nodes, {f['device']}, {f['backend']}; "
                f"they met in {f['join_seconds']:.1f} s"
            )
            lines.append(f"{'bytes':>12}  {'time':>12}  {'bus bandwidth':>16}")
            for row in self.rows:
                lines.append(
                    f"{row['bytes']:>12.0f}  {row['microseconds']:>9.1f} us  "
                    f"{row['bus_gigabytes_per_second']:>11.3f} GB/s"
                )
        return "\n".join([*lines, to_text([self.finding]).splitlines()[0], *self._more()])

    def _more(self) -> list[str]:
        texts = (self.finding.why, self.finding.fix) if self.finding.status != "good" else ()
        return [f"      {text}" for text in texts if text] + [f"run directory {self.run_dir}"]


def measure(
    config: Path, overrides: Sequence[str], say: Callable[[str], object]
) -> NetworkMeasurement:
    """Submit the job, wait for it, read what came out. Raises HpcAmpError where it cannot be
    submitted."""
    loaded, site = load_for_site(config, overrides)
    check_job(loaded, site)
    runs = Path(loaded.job.runs_dir).resolve()
    name = f"doctor-{loaded.job.name}"[:64]
    run_dir = runs / name / rundir.new_run_id()
    job = _small(loaded.job, name, run_dir)
    plan = make_plan(dataclasses.replace(loaded, job=job), site, run_dir)
    submission = submit(plan, loaded.text)
    say(f"submitted job {submission.job_id} ({plan.scheduler.name}), run directory {run_dir}")
    status = follow(plan.run_dir, lambda text: None, on_wait=_Waiting(say))
    return read(plan.run_dir, status)


def _small(job: Job, name: str, run_dir: Path) -> Job:
    """The same nodes, ranks and container; ten minutes; another program."""
    resources = dataclasses.replace(
        job.resources, walltime="10m", stop_margin="1m", max_restarts=0, chain=0
    )
    # Files for NCCL's words: in one log they would run into each other's lines.
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


class _Waiting:
    """Says once why a job waits."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say, self._said = say, ""

    def __call__(self, status: RunStatus) -> None:
        text = f"{status.state}: {status.reason}" if status.reason else status.state
        if status.state in ("pending", "unknown") and text != self._said:
            self._say(f"job {status.job_id} is {text}")
            self._said = text


def read(run_dir: Path, status: RunStatus) -> NetworkMeasurement:
    """What a finished job left."""
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
    """The network that NCCL uses between nodes, and the ways of its channels, by its own words."""
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
        what = f"the job came to no result: {status.state}"
        what += f" ({status.reason})" if status.reason else ""
        fix = f"hpc-amp explain {status.run_dir}"
        return Finding(
            "net.nccl", "error", what, "the ranks do not reach each other", fix, "network"
        )
    if facts["device"] != "cuda":
        what = f"an all-reduce over {facts['nodes']} node(s) through {facts['backend']} works"
        if facts["nodes"] > 1:
            what += "; NCCL cannot be checked: the ranks had no GPU"
        return Finding("net.nccl", "good", what, where="network")
    if facts["nodes"] == 1:
        return Finding("net.nccl", "good", "all-reduce on one node works", where="network")
    slow = network is not None and re.fullmatch(r"(NET/)?Socket", network) is not None
    if slow and any(_CARD.search(line) for line in lines):
        what = "NCCL goes through TCP (NET/Socket), although the nodes have a faster network"
        why = "an all-reduce takes many times as long as it could"
        fix = "see launch.fabric, /dev/infiniband and the provider's libraries inside (net.ib)"
        return Finding("net.nccl", "warning", what, why, fix, "network")
    if slow:
        what = "NCCL goes through TCP (NET/Socket)"
        why = "that is slow, unless the nodes have no other network"
        fix = "see launch.fabric: ib and slingshot have faster ways"
        return Finding("net.nccl", "warning", what, why, fix, "network")
    return Finding(
        "net.nccl", "good", f"NCCL uses {network or 'a network it does not name'}", where="network"
    )
