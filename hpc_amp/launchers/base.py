"""The interface of launchers to the renderer.

A launcher's command may use what `hpc_amp/host/run.sh` gives it: the arrays `container` (the words
before any command that shall run inside) and `program` (what Python runs as a rank), `python`,
`hosts` (the nodes' names, one a line, the first node first), `attempt`, and the exported
HPC_AMP_WORLD_SIZE, HPC_AMP_NNODES, HPC_AMP_PPN, MASTER_ADDR and MASTER_PORT. A launcher that has
more to do before has host code (`Launcher.host_code`).
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
"""What becomes a rank."""


class Launcher(ABC):
    """Starts `world_size` ranks and ends with a status of 0 only if all of them did."""

    name: ClassVar[str]
    mpi: ClassVar[bool] = False
    """Whether ranks can be an MPI world under it (`launch.mpi`)."""
    makes_steps: ClassVar[bool] = False
    """Whether it is the launcher of one scheduler, which makes a step of that scheduler's job."""
    starts_agents: ClassVar[bool] = False
    """Whether it starts one process on each node, which starts the node's ranks."""
    longest_grace: ClassVar[int | None] = None
    """Seconds after SIGTERM when it kills its ranks by itself; None where it waits for them."""

    @abstractmethod
    def forwards(self, plan: Spec) -> dict[str, str]:
        """Which signal to send to the launcher when the script gets one, so that the ranks hear of
        it. The script asks through a stop file in any case; this is the faster of two ways."""

    def step_cpus(self, plan: Spec) -> int:
        """Cores of each task of a step of the scheduler that the launcher makes."""
        return plan.cpus_per_task

    def settings(self, plan: Spec) -> dict[str, str]:
        """What the host code has to know besides the settings of all jobs."""
        return {}

    def host_code(self) -> str:
        """Bash that is sourced before the launch and defines `prepare_launch`. Default: the file
        of the launcher's name beside its module, or that of the launcher which it extends, or
        nothing."""
        names = [vars(cls)["name"] for cls in type(self).__mro__ if "name" in vars(cls)]
        return next(filter(None, (code_beside(self, f"{name}.sh") for name in names)), "")

    def reaches_nodes(self, step_launcher: str) -> bool:
        """Whether it starts ranks on several nodes, under a scheduler with that `step_launcher`.
        Default: where it has a `node_command` of its own. `validate` refuses other jobs."""
        return type(self).node_command is not Launcher.node_command

    @abstractmethod
    def command(self, plan: Spec) -> ShellText:
        """The launch as one simple bash command, possibly over several lines."""

    def node_command(self, plan: Spec, task: ShellText) -> ShellText:
        """`task` once on each node, with all that the node's ranks will have. Here: on the only
        node, by the script itself."""
        return task


class StepLauncher(Launcher):
    """The launcher of one scheduler, which makes a step of that scheduler's job. Its name is the
    scheduler's `step_launcher`."""

    makes_steps = True
    node_number: ClassVar[str]
    """The variable that has the number of the node, from 0, in each process of a step."""

    @abstractmethod
    def tasks(self, plan: Spec, what: ShellText, more: Sequence[str]) -> ShellText:
        """`what` as each of the tasks of the plan's launcher (`plan.tasks_per_node`); the step ends
        when one fails. `more` are options that site and job add."""

    @abstractmethod
    def once_per_node(self, plan: Spec, what: ShellText, more: Sequence[str]) -> ShellText:
        """`what` once on each node, with the cores of one of those tasks. One that fails ends no
        other: each has something to tell."""

    def command(self, plan: Spec) -> ShellText:
        """Every rank is a task."""
        return self.tasks(plan, verbatim(RANK), added_options(plan))

    def node_command(self, plan: Spec, task: ShellText) -> ShellText:
        """A step of its own."""
        return self.once_per_node(plan, task, added_options(plan))


def added_options(plan: Spec) -> list[str]:
    """The options of the launcher that site and job add."""
    return [*plan.site.launcher_args, *plan.job.launch.args]


def warnings(plan: Spec) -> dict[str, str]:
    """The signals that warn of the end, where the job wants them. A program that knows nothing of
    them would be killed long before its time is up."""
    wanted = plan.job.launch.forward_signals
    if wanted is None:
        wanted = plan.job.run is None
    return {"USR1": "USR1", "USR2": "USR2"} if wanted else {}
