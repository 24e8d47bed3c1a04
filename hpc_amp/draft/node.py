"""`hpc-amp site draft --on-node`: a small job that looks at a node.

The job is submitted with the drafted site, as any job. So it also shows whether the site works.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpc_amp.config.load import JobText, LoadedJob
from hpc_amp.config.site_draft import SiteDraft
from hpc_amp.config.write import to_text
from hpc_amp.containers import CONTAINERS
from hpc_amp.draft.machine import fabric_of, is_network, shared_mounts
from hpc_amp.errors import ConfigError, HpcAmpError
from hpc_amp.jobs.control import cancel
from hpc_amp.jobs.follow import follow
from hpc_amp.jobs.plan import Plan
from hpc_amp.jobs.render import render
from hpc_amp.jobs.submit import prepare, submit
from hpc_amp.schedulers import get_scheduler

SCRIPT = Path(__file__).with_name("look.sh")


def look(
    draft: SiteDraft, site_text: str, name: str, runs_dir: Path, say: Callable[[str], object]
) -> None:
    """Submit the job, wait for its end, and add what it saw to the draft.

    `site_text` is the site file as drafted so far, and `name` the site's name. `say` gets lines
    about the progress. The run directory, in `runs_dir`, is removed at the end, except if the job
    failed. Ctrl-C cancels the job. Raises HpcAmpError if the job cannot be submitted or fails.
    """
    is_new = not runs_dir.exists()
    runs_dir.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".site-draft-", dir=runs_dir.resolve()))
    try:
        seen = _run(draft, site_text, name, folder, say)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if is_new:
            with contextlib.suppress(OSError):
                runs_dir.rmdir()
    add_seen(draft, seen)


def _run(
    draft: SiteDraft, site_text: str, name: str, folder: Path, say: Callable[[str], object]
) -> list[tuple[str, str]]:
    """Run the job and read its result. All files are in `folder`."""
    site, script, result = folder / f"{name}.yaml", folder / "look.sh", folder / "seen"
    site.write_text(site_text, encoding="utf-8")
    shutil.copyfile(SCRIPT, script)
    programs = [one for name in CONTAINERS.names() for one in CONTAINERS.get(name).binaries]
    plan, loaded = prepare_look(
        draft, site, ["bash", str(script), str(result), *dict.fromkeys(programs)]
    )
    submission = submit(plan, loaded.text)
    say(f"submitted job {submission.job_id}, which looks at a node; Ctrl-C cancels it")
    log: list[str] = []
    try:
        status = follow(plan.run_dir, log.append, on_wait=say)
    except KeyboardInterrupt:
        say(f"cancelling job {submission.job_id}")
        cancel(plan.run_dir)
        raise
    if status.state != "finished" or not result.is_file():
        kept = Path(tempfile.mkdtemp(prefix="hpc-amp-site-draft-")) / "job.log"
        kept.write_text("".join(log), errors="replace")
        reason = f" ({status.reason})" if status.reason else ""
        raise HpcAmpError(
            f"the job that looks at a node is {status.state}{reason}",
            hint=f"its log is {kept}; leave --on-node out to write the file without it",
        )
    return read_seen(result)


def prepare_look(draft: SiteDraft, site: Path, command: list[str]) -> tuple[Plan, LoadedJob]:
    """The plan of the job. It has one GPU, or all of a node if the scheduler cannot give one."""
    count = draft.value("defaults.job.gpus_per_node") or 0
    keys: dict[str, Any] = {
        "name": "site-draft",
        "site": str(site),
        "runs_dir": str(site.parent),
        "launch": {"preflight": False},
        "run": command,
    }
    resources: dict[str, Any] = {
        "nodes": 1,
        "ranks_per_node": 1,
        "cpus_per_gpu": 1,
        "max_restarts": 0,
    }
    resources |= {"walltime": "10m", "stop_margin": "1m"}

    def with_gpus(number: int) -> tuple[Plan, LoadedJob]:
        keys["job"] = {**resources, "gpus_per_node": number}
        plan, loaded = prepare(JobText(site, to_text(keys)), [])
        render(plan)  # some requests are refused only here
        return plan, loaded

    try:
        return with_gpus(min(1, count))
    except ConfigError:
        return with_gpus(count)


def read_seen(result: Path) -> list[tuple[str, str]]:
    """The keys and values that the script wrote, without empty ones."""
    lines = result.read_text(errors="replace").splitlines()
    pairs = [(line.partition("\t")[0], line.partition("\t")[2].strip()) for line in lines]
    return [(key, value) for key, value in pairs if value]


def add_seen(draft: SiteDraft, seen: list[tuple[str, str]]) -> None:
    """Add what was seen on a node to the draft."""

    def all_of(key: str) -> list[str]:
        return [value for name, value in seen if name == key]

    host = next(iter(all_of("host")), "a node")
    where = f"Seen on node {host} (--on-node)"
    _add_gpus(draft, all_of("gpu"), all_of("device"), where)
    networks = [name for name in all_of("interface") if is_network(name)]
    fabric = fabric_of(networks)
    if fabric is not None:
        draft.add("fabric", fabric, f"{where}: interfaces {', '.join(networks)}")
    else:
        draft.entries.pop("fabric", None)
        cards = ", ".join(all_of("card")) or "no InfiniBand"
        draft.facts.append(f"node {host}: interfaces {', '.join(networks)}; {cards}")
    _add_runtime(draft, all_of("runtime"), where)
    _add_launcher(draft, "".join(all_of("mpirun")), "".join(all_of("mpiexec")), where)
    for program in ("mpirun", "mpiexec"):
        draft.facts += [f"node {host}: {program} is {text}" for text in all_of(program)]
    here = shared_mounts([f"- {mount}" for mount in all_of("mount")])
    wanted = draft.entries.get("bind")
    both = [place for place in wanted.value if place in here] if wanted is not None else []
    if both:
        draft.add("bind", both, f"{where} and on this machine: shared file systems (/proc/mounts)")
    for text in dict.fromkeys(all_of("scratch")):
        draft.facts.append(f"node {host}: local or temporary files: {text} free")


def _add_launcher(draft: SiteDraft, mpirun: str, mpiexec: str, where: str) -> None:
    """`mpiexec`, if the scheduler has no launcher of its own and mpirun is not Open MPI's."""
    scheduler = draft.value("scheduler")
    if scheduler is None or get_scheduler(scheduler).step_launcher:
        return
    if mpiexec and not re.search("Open ?MPI|OpenRTE", mpirun):
        source = f"{where}: mpiexec is {mpiexec}, and mpirun is {mpirun or 'missing'}"
        draft.add("launcher", "mpiexec", source)


def _add_gpus(draft: SiteDraft, gpus: list[str], devices: list[str], where: str) -> None:
    nvidia = [one for one in devices if one.startswith("/dev/nvidia")]
    other = [one for one in devices if one not in nvidia]
    for text in dict.fromkeys(gpus):
        draft.facts.append(f"{where}: GPU {text} (nvidia-smi: name, driver, memory)")
    if other:
        draft.facts.append(f"{where}: {', '.join(other)}")
    if nvidia and not draft.value("defaults.job.gpus_per_node"):
        draft.add("defaults.job.gpus_per_node", len(nvidia), f"{where}: {', '.join(nvidia)}")
    if not nvidia and draft.value("defaults.job.gpus_per_node"):
        draft.facts.append(f"{where}: no NVIDIA device, although the scheduler counts GPUs")
    if "/dev/kfd" in devices:
        question = f"{where}: /dev/kfd, a GPU of AMD. Its driver reaches containers by this option."
        draft.ask("container_args", ["--rocm"], question)


def _add_runtime(draft: SiteDraft, found: list[str], where: str) -> None:
    programs = {text.split()[0]: text.partition(" ")[2] for text in found}
    names = [
        name
        for name in CONTAINERS.names()
        if name != "auto" and any(one in programs for one in CONTAINERS.get(name).binaries)
    ]
    if names:
        present = draft.value("runtime")
        best = present if present in names else names[0]
        shown = "; ".join(f"{program}: {text}" for program, text in programs.items())
        draft.add("runtime", best, f"{where}: {shown}")
        return
    entry = draft.entries.get("runtime")
    if entry is not None and draft.value("setup") is None:
        entry.is_open = True
        entry.source += f"\n{where}: none of the programs is on PATH there."
