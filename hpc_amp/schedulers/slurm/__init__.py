"""Slurm."""

from hpc_amp.schedulers.slurm.scheduler import Slurm

__all__ = ["Slurm"]
