"""Slurm's srun: one task for each rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpc_amp.jobs.shell import ShellText, command_line, quote
from hpc_amp.launchers.base import StepLauncher, warnings

if TYPE_CHECKING:
    from hpc_amp.jobs.spec import Spec


# The nodes are named because a run may use a part of the allocation (hpc_amp/host/campaign.sh).
# Otherwise Slurm could choose other nodes of it than those in the run's list of nodes.
_SRUN = 'srun --nodelist="$SLURM_JOB_NODELIST"'


class Srun(StepLauncher):
    """Starts each rank as a task of a Slurm step. The step's variables give the rank its number."""

    name = "srun"
    mpi = True
    node_number = "SLURM_NODEID"

    def forwards(self, plan: Spec) -> dict[str, str]:
        """srun forwards SIGUSR1 and SIGUSR2. At SIGTERM it would kill the step at once. When Slurm
        ends a job, Slurm itself sends SIGTERM to the ranks."""
        return warnings(plan)

    def tasks(self, plan: Spec, what: ShellText, more: Sequence[str]) -> ShellText:
        """See `StepLauncher.tasks`.

        `--cpus-per-task` is repeated although the header has it: from Slurm 22.05 to 23.02 srun
        does not inherit it, and each rank would get one core. GPUs are not bound to ranks, so that
        NCCL can copy between them. This does not need `--gpu-bind=none`, which would show the ranks
        the GPUs of other jobs if cgroups do not limit the job.
        """
        nodes, per_node = plan.job.resources.nodes, plan.tasks_per_node
        options = [
            f"--nodes={nodes}",
            f"--ntasks={nodes * per_node}",
            f"--ntasks-per-node={per_node}",
            f"--cpus-per-task={plan.cpus_per_task}",
            "--distribution=block:block",
            f"--mpi={'none' if plan.job.launch.mpi == 'none' else plan.site.srun_mpi}",
            "--kill-on-bad-exit=1",
            "--wait=60",
            *more,
        ]
        return command_line([_SRUN, *map(quote, options), what])

    def once_per_node(self, plan: Spec, what: ShellText, more: Sequence[str]) -> ShellText:
        """See `StepLauncher.once_per_node`. The cores are those of one task: Slurm prints a warning
        if a step requests more cores per task than the header."""
        nodes = plan.job.resources.nodes
        options = [
            f"--nodes={nodes}",
            f"--ntasks={nodes}",
            "--ntasks-per-node=1",
            f"--cpus-per-task={plan.cpus_per_task}",
            "--distribution=block:block",
            "--mpi=none",
            "--kill-on-bad-exit=0",
            *more,
        ]
        return command_line([_SRUN, *map(quote, options), what])
