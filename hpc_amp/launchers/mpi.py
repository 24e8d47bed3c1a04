"""MPI's launchers: `mpirun` of Open MPI, `mpiexec` of MPICH (hydra) and of Cray (PALS)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_amp.jobs.shell import ShellText, quote, verbatim
from hpc_amp.launchers.base import RANK, Launcher, added_options, warnings

if TYPE_CHECKING:
    from hpc_amp.jobs.spec import Spec


def _more_options(plan: Spec) -> str:
    """The options of site and job, each followed by a blank."""
    return "".join(f"{quote(word)} " for word in added_options(plan))


class Mpirun(Launcher):
    """Open MPI's launcher, from version 1.8 on. Ranks are numbered node by node."""

    name = "mpirun"
    mpi = True

    def forwards(self, plan: Spec) -> dict[str, str]:
        """mpirun forwards SIGUSR1 and SIGUSR2. At SIGTERM it would kill the ranks after 1 s."""
        return warnings(plan)

    def step_cpus(self, plan: Spec) -> int:
        """If the scheduler has steps, mpirun starts one daemon on each node as a step, and the
        node's ranks share the daemon's cores."""
        return plan.job.cpus_per_node

    def command(self, plan: Spec) -> ShellText:
        """Start all ranks."""
        return self._start(plan, "$HPC_AMP_WORLD_SIZE", plan.job.ranks_per_node, RANK)

    def node_command(self, plan: Spec, task: ShellText) -> ShellText:
        """Start one process on each node."""
        return self._start(plan, "$HPC_AMP_NNODES", 1, task)

    def _start(self, plan: Spec, count: str, per_node: int, what: str) -> ShellText:
        """Start `count` processes. Binding is off, because it would restrict all threads of a rank
        to one core."""
        hosts = "" if plan.step_launcher else '--hostfile "attempts/$attempt/hosts" '
        return verbatim(
            f'mpirun -n "{count}" {hosts}--map-by ppr:{per_node}:node '
            f'--bind-to none "${{carried[@]}}" {_more_options(plan)}\\\n    {what}'
        )


class Mpiexec(Launcher):
    """The launcher `mpiexec` of MPICH and Intel MPI (hydra) and of Cray (PALS). They differ in the
    options that place ranks."""

    name = "mpiexec"
    mpi = True

    def forwards(self, plan: Spec) -> dict[str, str]:
        """No signal is forwarded by both of them. The ranks see the stop file."""
        return {}

    def step_cpus(self, plan: Spec) -> int:
        """As mpirun, hydra starts one daemon on each node as a step."""
        return plan.job.cpus_per_node

    def settings(self, plan: Spec) -> dict[str, str]:
        """`bound` is set if the job or its site has an option that binds ranks to cores."""
        more = " ".join(added_options(plan))
        return {"bound": "yes"} if "--cpu-bind" in more else {}

    def command(self, plan: Spec) -> ShellText:
        """Start all ranks."""
        return self._start(plan, "$HPC_AMP_WORLD_SIZE", '"$HPC_AMP_PPN"', RANK)

    def node_command(self, plan: Spec, task: ShellText) -> ShellText:
        """Start one process on each node."""
        return self._start(plan, "$HPC_AMP_NNODES", "1", task)

    def _start(self, plan: Spec, count: str, per_node: str, what: str) -> ShellText:
        """Start `count` processes. Both launchers accept `-n`, `-ppn` and `-hostfile`."""
        return verbatim(
            f'mpiexec -n "{count}" -ppn {per_node} '
            f'-hostfile "attempts/$attempt/hosts" "${{placement[@]}}" '
            f"{_more_options(plan)}\\\n    {what}"
        )
