"""Errors that keep a training from beginning or going on, with messages for the user."""

from __future__ import annotations

from hpc_amp.errors import InputError, JobError


class SettingError(InputError):
    """A setting has a value that is not allowed. The message names the key."""


class TrainingError(JobError):
    """Training cannot go on. The message says why and what to try."""


class Superseded(JobError):
    """A later attempt works on the run, so this attempt must not write to it any more."""
