"""PBS Professional and OpenPBS."""

from hpc_amp.schedulers.pbs.scheduler import Pbs

__all__ = ["Pbs"]
