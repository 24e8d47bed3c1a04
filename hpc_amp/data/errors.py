"""Errors of data. Apart from other modules because loader processes must not import torch."""

from __future__ import annotations

from hpc_amp.errors import InputError, JobError


class DataError(InputError):
    """The data is missing or cannot be used."""


class LoaderError(JobError):
    """A loader process cannot be started, or has ended."""
