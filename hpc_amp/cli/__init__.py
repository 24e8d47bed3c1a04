"""The command line. Every command imports what it needs when it runs: `hpc-amp --help` answers in a
blink, and nothing here ever imports torch."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


def main() -> None:
    """Entry point of `hpc-amp`."""
    import click

    from hpc_amp.cli.app import app
    from hpc_amp.errors import HpcAmpError
    from hpc_amp.registry import RegistryError

    # `hpc-amp logs ... | head`: a reader that has what it wanted ends this, without a word.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # A terminal that cannot show a letter shows a substitute.
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        os.getcwd()
    except OSError:
        _fail("the working directory does not exist any more; change to another one", 2)
    try:
        sys.exit(app(sys.argv[1:] or ["--help"], prog_name="hpc-amp", standalone_mode=False))
    except HpcAmpError as error:
        _fail(str(error), error.exit_code)
    except RegistryError as error:
        _fail(str(error), 2)
    except click.ClickException as error:
        # Where it is known which command was meant, its help is the hint.
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "hpc-amp"
        _fail(f"{error.format_message()} See {command} --help", 2)
    except click.Abort:
        sys.exit(130)


def _fail(message: str, status: int) -> NoReturn:
    print(f"hpc-amp: {' '.join(message.splitlines())}", file=sys.stderr)
    sys.exit(status)
