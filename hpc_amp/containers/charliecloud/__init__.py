"""Charliecloud."""

from hpc_amp.containers.charliecloud.container import Charliecloud

__all__ = ["Charliecloud"]
