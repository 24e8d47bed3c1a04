"""Cobalt, of Argonne."""

from hpc_amp.schedulers.cobalt.scheduler import Cobalt

__all__ = ["Cobalt"]
