"""Where the bash part of a class is found."""

from __future__ import annotations

from hpc_amp.containers.apptainer import Apptainer
from hpc_amp.launchers.mpi import Mpirun
from hpc_amp.launchers.torchrun import Torchrun
from hpc_amp.schedulers.slurm import Slurm


class LakeSlurm(Slurm):
    name = "lake"


class LakeApptainer(Apptainer):
    name = "lake"


class LakeMpirun(Mpirun):
    name = "lake"


class LakeTorchrun(Torchrun):
    name = "lake"


def test_a_class_without_host_code_of_its_own_has_that_of_the_class_it_extends() -> None:
    """Else its jobs would end at their first line, since the file is not in the run directory."""
    assert "scheduler_begins()" in LakeSlurm().host_code()
    assert LakeSlurm().host_code() == Slurm().host_code()
    assert "enter_container()" in LakeApptainer().host_code()
    assert "prepare_launch()" in LakeMpirun().host_code()
    assert LakeTorchrun().host_code() == ""
