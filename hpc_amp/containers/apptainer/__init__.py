"""Apptainer and Singularity."""

from hpc_amp.containers.apptainer.container import Apptainer, Either, Singularity

__all__ = ["Apptainer", "Either", "Singularity"]
