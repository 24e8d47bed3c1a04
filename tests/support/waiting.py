"""Waiting for what others do."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def wait_until(condition: Callable[[], Any], what: str, pause: float = 0.02) -> Any:
    """Until the condition holds; its value. The limit only ends what would hang: no test may fail
    because its machine is slow."""
    deadline = time.monotonic() + 600
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(pause)
    return value


def wait_for_file(path: Path) -> None:
    """Until it is there."""
    wait_until(path.exists, str(path))
