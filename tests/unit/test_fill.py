"""How the files in `jobs/` become scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_amp.jobs import shell
from hpc_amp.jobs.shell import Values, fill, quote, verbatim


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(shell, "resource_folder", lambda name: {"jobs": tmp_path}[name])
    return tmp_path


def filled(folder: Path, text: str, values: Values) -> str:
    (folder / "script.sh.in").write_text(text)
    return fill("script.sh.in", values)


def test_a_field_gets_its_value(folder: Path) -> None:
    values = {"name": quote("it's"), "count": 2}
    assert filled(folder, "a={{ name }} b={{ count }}\nend", values) == "a='it'\"'\"'s' b=2\nend"


def test_a_line_is_repeated_for_the_items_of_a_list(folder: Path) -> None:
    values: Values = {"marker": verbatim("#X"), "lines": [verbatim("a"), verbatim("b")], "none": []}
    text = "first\n{{ marker }} {{ lines }}\n  {{ none }}\nlast\n"
    assert filled(folder, text, values) == "first\n#X a\n#X b\nlast\n"


def test_a_value_is_not_searched_for_fields(folder: Path) -> None:
    values = {"one": quote("{{ two }}"), "two": quote("no")}
    assert filled(folder, "{{ one }}\n", values) == "'{{ two }}'\n"


@pytest.mark.parametrize("value", ["$(rm)", ["$(rm)"], None, [["a"]], 0.5])
def test_what_was_not_quoted_is_refused(folder: Path, value: object) -> None:
    with pytest.raises(TypeError, match="would reach a shell without being quoted"):
        filled(folder, "x={{ value }}\n", {"value": value})  # type: ignore[dict-item]


def test_a_field_needs_a_value(folder: Path) -> None:
    with pytest.raises(KeyError, match="other"):
        filled(folder, "x={{ other }}\n", {"value": 1})
