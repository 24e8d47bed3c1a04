"""Slurm's srun: one task a rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpc_amp.jobs.shell import ShellText, command_line, quote
from hpc_amp.launchers.base import RANK, Launcher, warnings

if TYPE_CHECKING:
    from hpc_amp.jobs.spec import Spec


# The nodes are named: a run may have a part of the allocation (jobs/study.sh.j2), and Slurm would
# take whichever of its nodes are idle, not those that the ranks are told of.
SRUN = 'srun --nodelist="$SLURM_JOB_NODELIST"'


def srun_options(plan: Spec) -> list[str]:
    """srun's options for the tasks of a launcher.

    `--cpus-per-task` is given although the header has it: from Slurm 22.05 to 23.02 srun does not
    inherit it and leaves every rank one core. GPUs are not bound to ranks, so that NCCL can copy
    from one to another; `--gpu-bind=none` is not needed for that, and where no cgroup limits a job
    it would show the ranks other jobs' GPUs. One dead rank ends the step.
    """
    job = plan.job
    per_node = plan.tasks_per_node
    return [
        f"--nodes={job.job.nodes}",
        f"--ntasks={job.job.nodes * per_node}",
        f"--ntasks-per-node={per_node}",
        f"--cpus-per-task={plan.cpus_per_task}",
        "--distribution=block:block",
        f"--mpi={'none' if job.launch.mpi == 'none' else plan.site.srun_mpi}",
        "--kill-on-bad-exit=1",
        "--wait=60",
    ]


def node_step(plan: Spec, task: ShellText, more: Sequence[str] = ()) -> ShellText:
    """`task` once on each node, with the cores of one of the launcher's tasks (Slurm warns of more
    than the header has) and `more` options. One that fails ends no other: each has something to
    tell."""
    job = plan.job
    options = [
        f"--nodes={job.job.nodes}",
        f"--ntasks={job.job.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={plan.cpus_per_task}",
        "--distribution=block:block",
        "--mpi=none",
        "--kill-on-bad-exit=0",
        *more,
    ]
    return command_line([SRUN, *map(quote, options), task])


class Srun(Launcher):
    """The ranks find their place in the variables of the Slurm step."""

    name = "srun"
    mpi = True

    def forwards(self, plan: Spec) -> dict[str, str]:
        """srun passes on SIGUSR1 and SIGUSR2. SIGTERM would make it kill the step at once; whenever
        Slurm terminates a job, it sends SIGTERM to the ranks itself."""
        return warnings(plan)

    def command(self, plan: Spec) -> ShellText:
        """srun starts every rank in its own container."""
        options = [*srun_options(plan), *plan.site.launcher_args, *plan.job.launch.args]
        return command_line([SRUN, *map(quote, options), RANK])

    def node_command(self, plan: Spec, task: ShellText) -> ShellText:
        """A step of its own."""
        return node_step(plan, task, [*plan.site.launcher_args, *plan.job.launch.args])
