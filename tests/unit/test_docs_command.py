"""`hpc-amp docs`: the pages in a terminal and as HTML."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from support.environment import REPOSITORY

from hpc_amp.cli.app import app
from hpc_amp.errors import UsageError

PAGES = {path.stem for path in (REPOSITORY / "docs").glob("*.md")}


def docs(*words: str) -> Result:
    return CliRunner().invoke(app, ["docs", *words])


def test_all_pages_are_listed_with_their_titles() -> None:
    lines = docs().stdout.splitlines()

    assert {line.split()[0] for line in lines} == PAGES
    assert lines[0].split() == ["index", "hpc-amp"]
    assert all(len(line.split()) > 1 for line in lines)


@pytest.mark.parametrize("name", ["sweeps", "sweeps.md", "docs/sweeps.md"])
def test_a_page_is_printed(name: str) -> None:
    assert docs(name).stdout == (REPOSITORY / "docs" / "sweeps.md").read_text()


def test_a_command_is_printed() -> None:
    shown = docs("scale report").stdout

    assert shown.startswith("#### scale report\n\n`hpc-amp scale report [OPTIONS]")
    assert "--latex" in shown
    assert "####" not in shown[4:]
    assert docs("submit").stdout.startswith("### submit\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sumbit"], "there is no page 'sumbit'; did you mean submit?"),
        (["xyzzy"], "there is no page 'xyzzy'; hpc-amp docs lists all pages"),
        (["sweeps", "--html", "x"], "--html writes all pages: leave out the name of a page"),
        (["--html", "."], ". already exists; choose another name"),
    ],
)
def test_what_cannot_be_done_is_one_line(words: list[str], message: str) -> None:
    error = docs(*words).exception
    assert isinstance(error, UsageError)
    assert str(error) == message


def test_without_mkdocs_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mkdocs.commands.build", None)
    error = docs("--html", str(tmp_path / "x")).exception
    assert isinstance(error, UsageError)
    assert str(error).endswith("pip install 'hpc-amp[docs]'")


def names_in(part: Any) -> list[str]:
    if isinstance(part, str):
        return [part]
    parts = part.values() if isinstance(part, dict) else part
    return [name for one in parts for name in names_in(one)]


def test_the_html_has_all_pages_and_needs_no_network(tmp_path: Path, logged: list[str]) -> None:
    nav = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text())["nav"]
    assert sorted(names_in(nav)) == sorted(f"{name}.md" for name in PAGES)

    result = docs("--html", str(tmp_path / "manual"))

    assert result.stdout == f"wrote {tmp_path / 'manual' / 'index.html'}\n", result.exception
    assert logged == []
    assert {path.stem for path in (tmp_path / "manual").glob("*.html")} == PAGES | {"404"}
    assert not list((tmp_path / "manual").glob("*.py"))
    for path in (tmp_path / "manual").glob("*.html"):
        text = path.read_text()
        assert (
            re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(?:https?:)?//[^"]*"', text) == []
        )
        assert 'href="../' not in text, path
