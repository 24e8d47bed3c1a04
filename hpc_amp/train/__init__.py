"""The training engine, which trains any task.

Programs and notebooks use `from hpc_amp.train import fit` (see `hpc_amp.train.api`). A job runs
`python -m hpc_amp.train`.
"""

import importlib
from typing import Any

_PUBLIC = {
    "Fitted": "api", "Observer": "observer", "evaluate": "api", "fit": "api",
    "run_program": "program", "ArgumentParser": "program", "Training": "observer",
}  # fmt: skip
"""What can be imported from here, and the module that defines it."""


def __getattr__(name: str) -> Any:
    # Import late: a job has to install its signal handlers before torch is imported.
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
