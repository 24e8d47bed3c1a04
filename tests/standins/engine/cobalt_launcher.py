"""What Cobalt runs on the first node: sets the job's variables and folder, and runs the script.

cobalt_launcher.py --nf NODEFILE --jobid ID --cwd FOLDER [--env NAME=VALUE]... SCRIPT [ARG]..."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine.nodes import initial_environment


def main(words: list[str]) -> int:
    """The script's status; for a signal, 128 and more, or the 255 of the ssh that brought us here;
    127 where there is nothing to run."""
    environ = initial_environment()
    cwd = "/"
    by_ssh = "--nf" in words
    while words and words[0].startswith("--"):
        option, value, *words = words
        if option == "--nf":
            environ["COBALT_NODEFILE"] = value
        elif option == "--jobid":
            environ["COBALT_JOBID"] = value
        elif option == "--cwd":
            cwd = value
        elif option == "--env":
            name, _, text = value.partition("=")
            environ[name] = text
    try:
        os.chdir(cwd)
        status = subprocess.Popen(words, env=environ).wait()
    except (OSError, IndexError) as error:
        print(error, file=sys.stderr)
        number = error.errno if isinstance(error, OSError) else errno.ENOENT
        return 127 if number == errno.ENOENT else 1
    if status < 0:
        return 255 if by_ssh else 128 - status
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
