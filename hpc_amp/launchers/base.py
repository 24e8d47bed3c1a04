"""The interface of launchers.

A launcher's command may use the variables of `hpc_amp/host/run.sh`: the arrays `container` (the
words before a command that runs in the container) and `program` (Python's arguments for a rank),
`python`, `hosts` (the names of the nodes, one per line, the first node first), `attempt`, and the
exported HPC_AMP_WORLD_SIZE, HPC_AMP_NNODES, HPC_AMP_PPN, MASTER_ADDR and MASTER_PORT. A launcher
that needs preparation on the first node has host code (`Launcher.host_code`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from hpc_amp.jobs.shell import ShellText, verbatim
from hpc_amp.registry import code_beside

if TYPE_CHECKING:
    from hpc_amp.jobs.spec import Spec


RANK = '"${container[@]}" "$python" "${program[@]}"'
"""The command of a rank."""


class Launcher(ABC):
    """Starts the ranks of a job. Its exit status is 0 only if that of all ranks is 0."""

    name: ClassVar[str]
    mpi: ClassVar[bool] = False
    """Whether it can start the ranks as an MPI program (`launch.mpi`)."""
    takes_args: ClassVar[bool] = True
    """Whether it has options, which a job adds with `launch.args`."""
    makes_steps: ClassVar[bool] = False
    """Whether it belongs to a scheduler and creates a step of that scheduler's job."""
    starts_agents: ClassVar[bool] = False
    """Whether it starts one process on each node, which starts the node's ranks."""
    longest_grace: ClassVar[int | None] = None
    """Seconds after SIGTERM until it kills its ranks; None if it waits for them."""

    @abstractmethod
    def forwards(self, plan: Spec) -> dict[str, str]:
        """The signals to forward: for a signal that the script gets, the signal to send to the
        launcher, which passes it on to the ranks. The script also creates the stop file, but
        signals are faster. Names are without `SIG`."""

    def step_cpus(self, plan: Spec) -> int:
        """The number of cores for each task of a step that the launcher creates."""
        return plan.cpus_per_task

    def settings(self, plan: Spec) -> dict[str, str]:
        """Further settings for the launcher's host code, as entries of its array `job`."""
        return {}

    def host_code(self) -> str:
        """Bash code that is sourced before the launch and defines `prepare_launch`. Default: the
        file NAME.sh beside the launcher's module, or that of its base class, or nothing."""
        names = [vars(cls)["name"] for cls in type(self).__mro__ if "name" in vars(cls)]
        return next(filter(None, (code_beside(self, f"{name}.sh") for name in names)), "")

    def reaches_nodes(self, step_launcher: str) -> bool:
        """Whether it can start ranks on several nodes, under a scheduler with this `step_launcher`.
        Default: if it has its own `node_command`."""
        return type(self).node_command is not Launcher.node_command

    @abstractmethod
    def command(self, plan: Spec) -> ShellText:
        """The command that starts all ranks, as one simple bash command. It may have several
        lines."""

    def node_command(self, plan: Spec, task: ShellText) -> ShellText:
        """The command that runs `task` once on each node, with the cores and GPUs of the node's
        ranks. Default: the script runs it, on the only node."""
        return task


class StepLauncher(Launcher):
    """The launcher of a scheduler, which creates a step of that scheduler's job. Its name is the
    scheduler's `step_launcher`."""

    makes_steps = True
    node_number: ClassVar[str]
    """The variable with the number of the node, from 0, in each process of a step."""

    @abstractmethod
    def tasks(self, plan: Spec, what: ShellText, more: Sequence[str]) -> ShellText:
        """The command of a step that runs `what` in `plan.tasks_per_node` tasks on each node. The
        step ends when one task fails. `more` are options of site and job."""

    @abstractmethod
    def once_per_node(self, plan: Spec, what: ShellText, more: Sequence[str]) -> ShellText:
        """The command of a step that runs `what` once on each node, with the cores of one task of
        `tasks`. A task that fails does not end the others, so that each can report its result."""

    def command(self, plan: Spec) -> ShellText:
        """Run each rank as a task of a step."""
        return self.tasks(plan, verbatim(RANK), added_options(plan))

    def node_command(self, plan: Spec, task: ShellText) -> ShellText:
        """Run the task in a step with one task on each node."""
        return self.once_per_node(plan, task, added_options(plan))


def added_options(plan: Spec) -> list[str]:
    """The options of the launcher that site and job add."""
    return [*plan.site.launcher_args, *plan.job.launch.args]


def warnings(plan: Spec) -> dict[str, str]:
    """SIGUSR1 and SIGUSR2, which announce the end of the job, if the job wants them forwarded.
    They would kill a program that does not handle them."""
    wanted = plan.job.launch.forward_signals
    if wanted is None:
        wanted = plan.job.run is None
    return {"USR1": "USR1", "USR2": "USR2"} if wanted else {}
