"""How PBS's mom starts a job on its first node: `pbs_shell.py login SHELL` becomes a login shell,
which reads the name of the script on its standard input; `pbs_shell.py plain COMMAND...` becomes
the command."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine.nodes import initial_environment


def main(how: str, program: str, *words: str) -> int:
    """254 where there is no such program."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_STACK, (16 << 20, resource.RLIM_INFINITY))
    environ = initial_environment()
    try:
        if how == "login":
            os.execve(program, [f"-{os.path.basename(program)}"], environ)
        os.execvpe(program, [program, *words], environ)
    except OSError as error:
        print(f"{program}: {error.strerror}", file=sys.stderr)
    return 254


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
