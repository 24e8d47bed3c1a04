"""Programs of this machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hpc_amp.resources import which


@pytest.mark.parametrize(
    "program", ["tool", "data", "folder", "missing", "second", "first/tool", "sh"]
)
@pytest.mark.parametrize("search", ["{0}/first:{0}/second", "{0}/none::{0}/second"])
def test_which_finds_what_shutil_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, search: str
) -> None:
    for name in ("first/tool", "second/tool", "second/second", "first/data"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o644 if name.endswith("data") else 0o755)
    (tmp_path / "first" / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "first")
    monkeypatch.setenv("PATH", search.format(tmp_path))

    assert which(program) == shutil.which(program)
    assert which(str(tmp_path / "second/tool")) == shutil.which(str(tmp_path / "second/tool"))
