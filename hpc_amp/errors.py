"""Errors of the submit side that a user can correct.

    HpcAmpError            shown as one line; the process exits with its `exit_code`
    ├── ConfigError        the YAML, an override or a site file is wrong (exit 2)
    ├── UsageError         the command cannot be executed as it was given (exit 2)
    ├── RegistryError      a class of another package cannot be used (exit 2, in `registry`)
    ├── SchedulerError     the scheduler refused a request or did not answer (exit 1)
    │   └── UnclearError   it is unknown whether the scheduler accepted a job
    └── JobError           training cannot begin or go on, as its ranks find (exit 1)
        └── InputError     settings, data or task of a job cannot be used (exit 2)
            └── KeyProblem     keys of a task do not fit together

Any other exception is a defect of hpc-amp and is shown with its traceback.
"""

from __future__ import annotations

import errno

FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
"""The numbers of an OSError where a disk, or what a user may store on it, is full."""
_ESCAPES = {ord(letter): ascii(letter)[1:-1] for letter in "\v\f\x1c\x1d\x1e\x85\u2028\u2029"}
"""Escapes of the characters that end a line, besides those of text files. A path may have some."""


def to_type(*words: object) -> str:
    """The command `hpc-amp` with these words as one types it in a shell: a path with a space is
    quoted."""
    import shlex  # only for errors and the last lines of commands

    return shlex.join(["hpc-amp", *map(str, words)])


class HpcAmpError(Exception):
    """An error that is shown to the user as one line: `message` says what is wrong, `hint` what
    to do about it."""

    exit_code = 1

    def __init__(self, message: object = "", *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = str(message)
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.message}; {self.hint}" if self.hint else self.message
        return text.translate(_ESCAPES)


class ConfigError(HpcAmpError):
    """A configuration is wrong. `where` is `file:line`, or the override that set the value."""

    exit_code = 2

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.where = where

    def __str__(self) -> str:
        text = super().__str__()
        return f"{self.where}: {text}" if self.where else text


class UsageError(HpcAmpError):
    """The command cannot be executed as it was given."""

    exit_code = 2


class SchedulerError(HpcAmpError):
    """The scheduler refused the request or did not answer."""


class UnclearError(SchedulerError):
    """It is unknown whether the scheduler accepted a job. The caller must keep the job's files,
    because the job may start."""


class JobError(HpcAmpError, RuntimeError):
    """Training cannot begin or go on. A rank prints the message, without a traceback."""


class InputError(JobError):
    """The settings, the data or the task of a job cannot be used."""

    exit_code = 2


class KeyProblem(InputError):
    """The value of a key of a task does not fit to other keys. `key` is its path below `train`,
    such as `munit.style_downs`; `problem` says what is wrong with it."""

    def __init__(self, key: str, problem: str, hint: str | None = None) -> None:
        super().__init__(f"train.{key}: {problem}", hint=hint)
        self.key = key
        self.problem = problem
