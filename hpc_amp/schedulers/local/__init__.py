"""The local scheduler: jobs are processes of this machine."""

from hpc_amp.schedulers.local.scheduler import Local

__all__ = ["Local"]
