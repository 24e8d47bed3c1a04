"""Fixtures for unit tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from hpc_amp.schedulers import base


@pytest.fixture(scope="module", autouse=True)
def _no_pauses() -> Iterator[None]:
    """Schedulers that do not answer are asked again at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "PAUSES", (0.0, 0.0))
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """Close what `support.training.engine` opened before its folder is removed, without importing
    torch for other tests."""
    training = sys.modules.get("support.training")
    while training is not None and training.opened:
        engine = training.opened.pop()
        engine.tracker.close()
        engine.precision.close()
