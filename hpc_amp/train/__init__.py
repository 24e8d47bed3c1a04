"""The training engine: how a task is trained, whatever it is.

    from hpc_amp.train import fit

is for programs and notebooks (see `hpc_amp.train.api`); a job runs `python -m hpc_amp.train`.
"""

import importlib
from typing import Any

_PUBLIC = {
    "Fitted": "api", "Observer": "observer", "evaluate": "api", "fit": "api",
    "run_program": "program", "ArgumentParser": "program", "Training": "observer",
}  # fmt: skip
"""What to import from here, and the module that has it."""


def __getattr__(name: str) -> Any:
    # Later than at the import: a job has to listen to signals before it imports torch.
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
