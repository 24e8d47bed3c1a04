"""`python -m hpc_amp.distributed.interpreter 3.11 ARGUMENT ...`: the Python that runs, in a
container, a function that was pickled outside by Python 3.11 (`hpc_amp.executor`).

It has the job's environment, but no rank, because submitit has variables of its own for that.
submitit itself is the host's, from the run directory, since both of its halves have to match.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from hpc_amp.distributed.world import World, standard_variables

# The module with which submitit starts a Python.
_SUBMITIT = "submitit.core._submit"


def main(arguments: list[str]) -> NoReturn:
    """Become the interpreter, with the arguments after the first. If this Python cannot read what
    was pickled, prints one line and exits with 1: functions are pickled as bytecode, which differs
    between minor versions."""
    pickled_by, *rest = arguments
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if own != pickled_by:
        sys.exit(
            f"hpc-amp: the function was pickled by Python {pickled_by}, but the job's "
            f"{sys.executable} is Python {own}: submit from Python {own}, or set container.python"
        )
    rest = ["hpc_amp.distributed.function" if word == _SUBMITIT else word for word in rest]
    folder = Path(os.environ["HPC_AMP_JOB"]).parent
    os.execve(sys.executable, [sys.executable, *rest], environment(os.environ, folder))


def environment(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The environment of the function. `folder` is the folder of `job.json`."""
    names = standard_variables(World(), {})
    changed = {name: value for name, value in environ.items() if name not in names}
    changed["PATH"] = os.pathsep.join([str(folder / "commands"), environ.get("PATH", os.defpath)])
    libraries = [folder / "lib" / name for name in ("submitit", "cloudpickle")]
    if importlib.util.find_spec("typing_extensions") is None:
        libraries.append(folder / "lib" / "typing_extensions")
    paths = [*map(str, libraries), *filter(None, [environ.get("PYTHONPATH")])]
    changed["PYTHONPATH"] = os.pathsep.join(paths)
    return changed


if __name__ == "__main__":
    main(sys.argv[1:])
