"""Errors of a training whose message is for the user."""

from __future__ import annotations


class TrainingError(RuntimeError):
    """The training cannot go on; the message says why and what to try."""


class Superseded(RuntimeError):
    """A later attempt works on the run; this one must not write to it any more."""
