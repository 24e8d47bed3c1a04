"""How the ranks are started on the nodes of an allocation."""

from __future__ import annotations

from hpc_amp.launchers.base import Launcher
from hpc_amp.launchers.mpi import Mpiexec, Mpirun
from hpc_amp.launchers.single import Single
from hpc_amp.launchers.srun import Srun
from hpc_amp.launchers.torchrun import Torchrun

__all__ = ["Launcher", "get_launcher"]

_LAUNCHERS: dict[str, type[Launcher]] = {
    launcher.name: launcher for launcher in (Srun, Mpirun, Mpiexec, Torchrun, Single)
}


def get_launcher(name: str) -> Launcher:
    """The launcher of that name."""
    return _LAUNCHERS[name]()
