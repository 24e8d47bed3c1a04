"""Fixtures of the chaos suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.warm_python import WarmPython

from chaos.ranks import Run, Zygote


@pytest.fixture(scope="session")
def zygote(warm_pythons: WarmPython) -> Iterator[Zygote]:
    """The process that forks ranks, one for all tests."""
    made = Zygote("chaos.zygote", {"OMP_NUM_THREADS": "1"}, python=warm_pythons.fork)
    yield made
    made.close()


@pytest.fixture
def new_run(zygote: Zygote, tmp_path: Path) -> Callable[..., Run]:
    """Makes runs: new_run(name, train..., timeout=...)."""

    def make(name: str = "run", *, timeout: str = "10m", **train: Any) -> Run:
        return Run(zygote, tmp_path / name, train, timeout)

    return make
