"""Pyxis, the plugin of Slurm that starts containers of Enroot."""

from hpc_amp.containers.pyxis.container import Pyxis

__all__ = ["Pyxis"]
