"""Errors that end a training, with messages for the user."""

from __future__ import annotations

from hpc_amp.errors import JobError


class TrainingError(JobError):
    """Training cannot go on. The message says why and what to try."""


class Superseded(JobError):
    """A later attempt works on the run, so this attempt must not write to it any more."""
