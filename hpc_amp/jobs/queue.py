"""Jobs in the queue by the folder that they belong to: how a job is found whose id nobody got."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from hpc_amp.errors import SchedulerError
from hpc_amp.schedulers import local
from hpc_amp.schedulers.base import complaint, run_command


def find_jobs(scheduler: str, folder: Path) -> list[str]:
    """The ids of the jobs whose script lies in `folder`, as far as the queue shows jobs; the folder
    is their working directory, and their log lies in there. Raises SchedulerError where the
    scheduler does not answer."""
    jobs = _QUEUES[scheduler]() if scheduler in _QUEUES else {}
    return [job_id for job_id, path in jobs.items() if folder in (path, *path.parents)]


def queued_on_slurm() -> dict[str, Path]:
    """Working directories of jobs."""
    command = ["squeue", "-h", "-u", str(os.getuid()), "--states=all", "-o", "%i|%Z"]
    rows = (line.strip().partition("|") for line in _said(command).splitlines())
    return {job_id: Path(path) for job_id, _, path in rows if path}


def queued_on_pbs() -> dict[str, Path]:
    """Logs of jobs."""
    text = _said(["qstat", "-f"]).replace("\n\t", "")  # long values go on behind a tab
    jobs = {}
    for block in text.split("Job Id: ")[1:]:
        output = re.search(r"^ *Output_Path = [^:]*:(.*)$", block, re.MULTILINE)
        if output is not None:
            jobs[block.split()[0]] = Path(output[1])
    return jobs


def queued_on_cobalt() -> dict[str, Path]:
    """Scripts of jobs: Cobalt takes none with a blank in its path."""
    rows = (line.split() for line in _said(["qstat", "--header", "JobID:Command"]).splitlines())
    return {row[0]: Path(row[1]) for row in rows if len(row) == 2 and row[0].isdecimal()}


def _local() -> dict[str, Path]:
    """Scripts of the processes on this machine, without the subshells that look like them."""
    scripts: dict[int, Path] = {}
    parents: dict[int, int] = {}
    for process in Path("/proc").glob("[0-9]*"):
        pid = int(process.name)
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            stat = (process / "stat").read_text()
        except OSError:
            continue  # it has ended
        if words[0] == b"bash" and len(words) > 1:
            scripts[pid] = Path(os.fsdecode(words[1]))
            parents[pid] = int(stat.rpartition(")")[2].split()[1])
    return {
        local.id_of_process(pid): script
        for pid, script in scripts.items()
        if scripts.get(parents[pid]) != script
    }


_QUEUES: dict[str, Callable[[], dict[str, Path]]] = {
    "slurm": queued_on_slurm,
    "pbs": queued_on_pbs,
    "cobalt": queued_on_cobalt,
    "local": _local,
}


def _said(command: list[str]) -> str:
    result = run_command(command)
    if result.returncode != 0 and (result.stdout.strip() or result.stderr.strip()):
        raise SchedulerError(f"{command[0]} does not answer: {complaint(result)}")
    return result.stdout
