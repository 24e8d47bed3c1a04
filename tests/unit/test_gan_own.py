"""The model of docs/gan-own.md, in a package outside of hpc-amp."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
from support.environment import REPOSITORY
from support.paired import TRAIN
from support.training import engine, fit_until

from hpc_amp.train.state import weights_digest

PAGE = REPOSITORY / "docs" / "gan-own.md"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package `sketch` of the page, which can be imported."""
    folder = tmp_path / "code" / "sketch"
    folder.mkdir(parents=True)
    for name in ("config.py", "task.py"):
        found = re.search(
            rf"^`sketch/{name}`[^\n]*:\n\n<!--[^\n]*\n```python\n(.*?)^```",
            PAGE.read_text(),
            re.MULTILINE | re.DOTALL,
        )
        assert found is not None
        (folder / name).write_text(found[1])
    monkeypatch.syspath_prepend(folder.parent)
    for name in [name for name in sys.modules if name.split(".")[0] == "sketch"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("package")
def test_a_model_of_ones_own_trains_and_resumes_bit_by_bit(tmp_path: Path) -> None:
    task = importlib.import_module("sketch.task").Painter
    plain = {"task": "sketch.task:Painter", **TRAIN, "sketch": {"width": 8}}
    plain |= {"precision": "fp16", "ema": 0.9, "epochs": 2}
    whole = engine(tmp_path / "whole", task, **plain)
    whole.fit()
    fit_until(engine(tmp_path / "parts", task, **plain), 4)
    resumed = engine(tmp_path / "parts", task, attempt=2, **plain)
    resumed.fit()
    assert weights_digest(resumed.networks) == weights_digest(whole.networks)
    assert {"frechet_random", "label_agreement"} <= set(resumed.metrics) == set(whole.metrics)
    assert task.name == "Painter"
