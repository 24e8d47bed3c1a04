"""Apptainer and Singularity."""

from hpc_amp.containers.apptainer.container import BINARIES, ExecContainer

__all__ = ["BINARIES", "ExecContainer"]
