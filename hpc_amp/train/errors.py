"""Errors that end a training, with messages for the user."""

from __future__ import annotations


class TrainingError(RuntimeError):
    """Training cannot go on. The message says why and what to try."""


class Superseded(RuntimeError):
    """A later attempt works on the run, so this attempt must not write to it any more."""
