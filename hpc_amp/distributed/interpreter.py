"""`python -m hpc_amp.distributed.interpreter 3.11 ARGUMENT ...`: the Python, inside the container,
of a function that was pickled outside by Python 3.11 (`hpc_amp.executor`).

It has the job's environment, but no rank: submitit has names of its own for that. submitit itself
comes from the host, in the folder that the job runs from, since its two halves have to fit.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from hpc_amp.distributed.world import World, standard_variables

# The module that submitit starts a Python with.
_SUBMITIT = "submitit.core._submit"


def main(arguments: list[str]) -> NoReturn:
    """Become the interpreter, with the arguments behind the first. Exits with 2 and one line where
    it cannot read what was pickled: code is pickled as bytecode, which every minor version has its
    own of."""
    pickled_by, *rest = arguments
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if own != pickled_by:
        sys.exit(
            f"hpc-amp: the function was pickled by Python {pickled_by}, and the job's "
            f"{sys.executable} is {own}: submit from a Python {own}, or set container.python"
        )
    rest = ["hpc_amp.distributed.function" if word == _SUBMITIT else word for word in rest]
    folder = Path(os.environ["HPC_AMP_JOB"]).parent
    os.execve(sys.executable, [sys.executable, *rest], environment(os.environ, folder))


def environment(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The environment of the function."""
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
