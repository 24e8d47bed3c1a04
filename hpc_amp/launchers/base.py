"""The interface of launchers to the renderer.

A launcher's command may use what `hpc_amp/host/run.sh` gives it: the arrays `container` (the words
before any command that shall run inside) and `program` (what Python runs as a rank), `python`,
`hosts` (the nodes' names, one a line, the first node first), `attempt`, and the exported
HPC_AMP_WORLD_SIZE, HPC_AMP_NNODES, HPC_AMP_PPN, MASTER_ADDR and MASTER_PORT. A launcher that has
more to do before has a file of its name in `hpc_amp/host/launchers/`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from hpc_amp.jobs.shell import ShellText

if TYPE_CHECKING:
    from hpc_amp.config.schema import Job
    from hpc_amp.jobs.plan import Plan


RANK = '"${container[@]}" "$python" "${program[@]}"'
"""What becomes a rank."""


class Launcher(ABC):
    """Starts `world_size` ranks and ends with a status of 0 only if all of them did."""

    name: ClassVar[str]
    mpi: ClassVar[bool] = False
    """Whether ranks can be an MPI world under it (`launch.mpi`)."""

    @abstractmethod
    def forwards(self, plan: Plan) -> dict[str, str]:
        """Which signal to send to the launcher when the script gets one, so that the ranks hear of
        it. The script asks through a stop file in any case; this is the faster of two ways."""

    def tasks_per_node(self, job: Job) -> int:
        """Processes that the scheduler has to start on each node."""
        return job.ranks_per_node

    def cpus_per_task(self, job: Job) -> int:
        """Cores of each such process."""
        return job.job.cpus_per_gpu

    def step_cpus(self, job: Job) -> int:
        """Cores of each task of a Slurm step that the launcher makes."""
        return self.cpus_per_task(job)

    def settings(self, plan: Plan) -> dict[str, str]:
        """What `hpc_amp/host/launchers/NAME.sh` has to know besides the settings of all jobs."""
        return {}

    @abstractmethod
    def command(self, plan: Plan) -> ShellText:
        """The launch as one simple bash command, possibly over several lines."""

    def node_command(self, plan: Plan, task: ShellText) -> ShellText:
        """`task` once on each node, with all that the node's ranks will have. Here: on the only
        node, by the script itself."""
        return task


def warnings(plan: Plan) -> dict[str, str]:
    """The signals that warn of the end, where the job wants them. A program that knows nothing of
    them would be killed long before its time is up."""
    wanted = plan.job.launch.forward_signals
    if wanted is None:
        wanted = plan.job.run is None
    return {"USR1": "USR1", "USR2": "USR2"} if wanted else {}
