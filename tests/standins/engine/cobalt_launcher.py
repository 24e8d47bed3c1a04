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
    """The script's status, 128 and more for a signal; 127 where there is nothing to run."""
    environ = initial_environment()
    cwd = "/"
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
    return 128 - status if status < 0 else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
