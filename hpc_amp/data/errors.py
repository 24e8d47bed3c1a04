"""Errors of data."""

from __future__ import annotations

from hpc_amp.errors import InputError


class DataError(InputError):
    """The data is missing or cannot be used."""
