"""Grid Engine: Son of Grid Engine, Univa's, Altair's and Open Cluster Scheduler."""

from hpc_amp.schedulers.gridengine.scheduler import GridEngine

__all__ = ["GridEngine"]
