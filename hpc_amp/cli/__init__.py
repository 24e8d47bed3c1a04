"""The command line.

Every command imports what it needs when it runs, so that `hpc-amp --help` starts quickly. Nothing
here imports torch.
"""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from hpc_amp.errors import HpcAmpError


def main() -> None:
    """Entry point of the `hpc-amp` program.

    An error that the user can correct is printed as one line on standard error. The exit status is
    then the error's `exit_code`, 2 for wrong arguments, or 130 after Ctrl-C.
    """
    try:
        _main()
    except KeyboardInterrupt:  # before the command itself has begun, or after its end
        sys.exit(130)


def _main() -> NoReturn:
    # Most commands are short, and leave little to collect. Python looks for it dozens of times
    # during the imports and, unless all objects are set aside, several times at the end: a tenth of
    # the CPU time. All files are closed where they are written, so none is left to this collection.
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)
    import click

    from hpc_amp.cli.app import app
    from hpc_amp.errors import FULL_DISK, HpcAmpError

    _open_closed_streams()
    # `hpc-amp logs ... | head`: when the reader closes the pipe, end without an error message.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # Print a substitute for characters that the terminal's encoding does not have.
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        os.getcwd()
    except OSError:
        _fail("the working directory no longer exists; change to another one", 2)
    try:
        sys.exit(app(sys.argv[1:] or ["--help"], prog_name="hpc-amp", standalone_mode=False))
    except HpcAmpError as error:
        _fail(_with_known_fix(error), error.exit_code)
    except click.ClickException as error:
        message = error.format_message()
        if not message.endswith((".", "?")):
            message += "."
        context = getattr(error, "ctx", None)  # None for an option without its value
        _fail(f"{message} See {context.command_path} --help" if context else message, 2)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            # Wherever the name was used first: it can only be one that the user gave.
            _fail(f"{str(error.filename)[:40]}...: {error.strerror}", 2)
        if error.errno in FULL_DISK:
            _fail(f"{error.filename or 'the output'} cannot be written: {error.strerror}", 1)
        raise
    except click.Abort:
        sys.exit(130)


def _open_closed_streams() -> None:
    """Open the standard streams that this process was started without, as by `>&-`. The next file
    would get the number of such a stream, and programs would write their output to it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def _with_known_fix(error: HpcAmpError) -> str:
    """The text of an error. A refusal of the scheduler also has the fix of `hpc-amp explain`."""
    from hpc_amp.errors import SchedulerError

    if not isinstance(error, SchedulerError) or error.hint is not None:
        return str(error)
    from hpc_amp.explain.run import explain_stream

    found = explain_stream(io.BytesIO(error.message.encode()), "the scheduler's answer")
    fix = found.to_plain()["fix"]
    return f"{error}. Fix: {fix}" if fix else str(error)


def _fail(message: str, status: int) -> NoReturn:
    print(f"hpc-amp: {' '.join(message.splitlines())}", file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:  # Python would try it again at the end, and complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)
