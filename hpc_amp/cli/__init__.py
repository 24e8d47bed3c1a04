"""The command line. Every command imports what it needs when it runs: `hpc-amp --help` answers in a
blink, and nothing here ever imports torch."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of `hpc-amp`."""
    from hpc_amp.cli.app import app
    from hpc_amp.errors import HpcAmpError

    try:
        app(prog_name="hpc-amp", standalone_mode=True)
    except HpcAmpError as error:
        print(f"hpc-amp: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # `hpc-amp logs ... | head`: the reader has what it wanted.
        sys.stderr.close()
        sys.exit(141)
