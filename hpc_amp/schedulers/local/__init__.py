"""This machine, without a scheduler."""

from hpc_amp.schedulers.local.scheduler import Local

__all__ = ["Local"]
