"""Errors that a user can do something about.

    HpcAmpError            one clear line; `exit_code` becomes the process's
    ├── ConfigError        the YAML, an override or a site file is wrong (exit 2)
    ├── UsageError         the command cannot be carried out as asked (exit 2)
    ├── SchedulerError     the scheduler refused or did not answer (exit 1)
    │   └── UnclearError   ... and may have taken a job all the same
    └── JobError           training cannot begin or go on, as its ranks find (exit 1)
        └── InputError     settings, data or task of a job cannot be used (exit 2)

Anything else that escapes is a defect of hpc-amp and keeps its traceback.
"""

from __future__ import annotations


class HpcAmpError(Exception):
    """An error told to the user as one line: what is wrong and what to do."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class ConfigError(HpcAmpError):
    """A configuration is wrong; `where` is `file:line` or the override that said it."""

    exit_code = 2

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.where = where

    def __str__(self) -> str:
        text = super().__str__()
        return f"{self.where}: {text}" if self.where else text


class UsageError(HpcAmpError):
    """The command cannot be carried out as it was given."""

    exit_code = 2


class SchedulerError(HpcAmpError):
    """The scheduler refused the request or did not answer."""


class UnclearError(SchedulerError):
    """Whether the scheduler has taken a job is not known: what belongs to the job has to stay."""


class JobError(HpcAmpError, RuntimeError):
    """Training cannot begin or go on. A rank prints the message, without a traceback."""


class InputError(JobError):
    """The settings, the data or the task of a job cannot be used."""

    exit_code = 2
