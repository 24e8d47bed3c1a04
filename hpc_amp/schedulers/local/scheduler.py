"""The local scheduler: the script runs on this machine, in a session of its own."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hpc_amp.errors import ConfigError, SchedulerError
from hpc_amp.schedulers.answers import JobStatus, Submission
from hpc_amp.schedulers.base import (
    Interactive,
    Scheduler,
    launcher_of_one_node,
    run_here,
)
from hpc_amp.schedulers.local.processes import id_of_process, start_time

if TYPE_CHECKING:
    import submitit

    from hpc_amp.config.schema import Job
    from hpc_amp.jobs.spec import Spec
    from hpc_amp.schedulers.local.arrays import LocalArrays


class Local(Scheduler):
    """Runs jobs as processes of this machine. Their ids are those of `id_of_process`."""

    name = "local"
    title = "the local scheduler"
    instead_of_key: ClassVar[Mapping[str, str]] = {"gpu_type": "remove it", "chunk": "remove it"}
    limits = False
    whole_nodes = True
    one_machine = True
    ask_seconds = 1.0
    grace = 30

    def default_launcher(self, job: Job) -> str:
        """`processes` for several ranks, else `single`."""
        return launcher_of_one_node(job)

    def directives(self, plan: Spec) -> list[str]:
        """None. `check` refuses directives of site and job."""
        return []

    def check(self, plan: Spec) -> None:
        """Refuse directives, and more GPUs than this machine has."""
        if plan.site.directives or plan.job.resources.directives:
            raise ConfigError("job.directives: the local scheduler has none", hint="remove them")
        present = _nvidia_gpus()
        wanted = plan.job.resources.gpus_per_node
        if 0 < present < wanted:
            raise ConfigError(
                f"the job wants {wanted} GPUs, but this machine has {present}",
                hint="set job.nodes=1 and job.gpus_per_node, or choose the site of a cluster",
            )

    def submit(
        self,
        script: Path,
        environ: Mapping[str, str],
        *,
        after: str | None = None,
        held: bool = False,
    ) -> Submission:
        """Start the script detached from this terminal, with its output in the run's log."""
        log = script.parent / "logs" / "job.log"
        with log.open("ab") as out:
            try:
                process = subprocess.Popen(
                    ["bash", str(script)],
                    env=dict(environ),
                    cwd=script.parent,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise SchedulerError(f"bash cannot be started: {error}") from None
        return Submission(id_of_process(process.pid))

    def interactive(
        self, plan: Spec, script: Path, environ: Mapping[str, str], *, terminal: bool
    ) -> Interactive:
        """This machine is the allocation."""
        return run_here(script, environ)

    def arrays(self) -> LocalArrays:
        """Points run as processes of the command that starts the sweep."""
        from hpc_amp.schedulers.local.arrays import LocalArrays  # only for many runs

        return LocalArrays(self)

    def submitit_executor(self, plan: Spec) -> submitit.Executor:
        """An executor that starts processes of this machine."""
        import submitit  # heavy, and optional

        made = submitit.LocalExecutor(
            plan.run_dir / "jobs",
            plan.job.resources.max_restarts,
            python=shlex.quote(str(plan.run_dir / "python")),
        )
        made.update_parameters(
            tasks_per_node=plan.job.world_size,
            gpus_per_node=plan.job.resources.gpus_per_node,
            timeout_min=plan.walltime / 60,
            signal_delay_s=plan.stop_margin,
            stderr_to_stdout=True,
        )
        return made

    def queued(self) -> dict[str, Path]:
        """The scripts of this machine's processes. Subshells of a script, which have its command
        line, are left out."""
        scripts: dict[int, Path] = {}
        parents: dict[int, int] = {}
        for process in Path("/proc").glob("[0-9]*"):
            pid = int(process.name)
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
                stat = (process / "stat").read_text()
            except OSError:
                continue  # the process has ended
            if words[0] == b"bash" and len(words) > 1:
                scripts[pid] = Path(os.fsdecode(words[1]))
                parents[pid] = int(stat.rpartition(")")[2].split()[1])
        return {
            id_of_process(pid): script
            for pid, script in scripts.items()
            if scripts.get(parents[pid]) != script
        }

    def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """Query which of the processes are alive."""
        return {
            job_id: JobStatus("running") if _alive(job_id) else JobStatus("ended", "process gone")
            for job_id in job_ids
        }

    def cancel(self, job_id: str) -> None:
        """Send SIGTERM to the script, which lets the ranks save, and SIGKILL to all its processes
        30 s later."""
        pid = int(job_id.split("-")[1])
        if not _alive(job_id):
            return
        _send(pid, signal.SIGTERM)
        deadline = time.monotonic() + self.grace
        while _alive(job_id) and time.monotonic() < deadline:
            time.sleep(0.1)
        if _alive(job_id):
            for member in _family(pid):
                _send(member, signal.SIGKILL)


def _alive(job_id: str) -> bool:
    _, pid, started = job_id.split("-")
    return start_time(int(pid)) == int(started)


def _family(pid: int) -> list[int]:
    """A process and all its descendants. The process group and the session would not do: torchrun
    starts its ranks in sessions of their own."""
    family = [pid]
    for member in family:
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{member}/task/{member}/children").read_text()
            family += map(int, children.split())
    return family


def _send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process. Does nothing if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _nvidia_gpus() -> int:
    """The number of NVIDIA GPUs of this machine, according to the driver."""
    folder = Path("/proc/driver/nvidia/gpus")
    return len(list(folder.iterdir())) if folder.is_dir() else 0
