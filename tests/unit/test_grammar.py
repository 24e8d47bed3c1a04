"""How a scheduler of another package has its directives read, by the linter and by the renderer's
check."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.documents import blocks_of
from support.environment import REPOSITORY

from hpc_amp.schedulers import SCHEDULERS, grammars
from hpc_amp.schedulers.grammar import Grammar
from hpc_amp.schedulers.options import OptionTable, spellings
from hpc_amp.schedulers.words import Split, plain_words

PAGE = REPOSITORY / "docs" / "extending-scheduler.md"
SCHEDULER = """
from hpc_amp.schedulers.local import Local
from lake_grammar import GRAMMAR, directives


class Lake(Local):
    name = "lake"
    title = "Lake"
    grammar = GRAMMAR

    def directives(self, plan):
        return directives(plan)

    def check(self, plan):
        pass
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment in which a package with a scheduler is installed."""
    folder = tmp_path / "packages"
    info = folder / "lake-1.dist-info"
    info.mkdir(parents=True)
    python = [
        block.text for block in blocks_of(PAGE.read_text(), PAGE.name) if "LakeGr" in block.text
    ]
    (folder / "lake_grammar.py").write_text(python[0])
    (folder / "lake.py").write_text(SCHEDULER)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lake\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[hpc_amp.schedulers]\nlake = lake:Lake\n")
    return {**os.environ, "PYTHONPATH": str(folder)}


def hpc_amp(environ: dict[str, str], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from hpc_amp.cli import main; main()", *words]
    return subprocess.run(
        command, env=environ, cwd=folder, capture_output=True, text=True, check=False
    )


def test_the_linter_reads_the_directives_of_another_package(
    environ: dict[str, str], tmp_path: Path
) -> None:
    header = "#LAKE --nodes=2\n#LAKE --tyme=5\n # LAKE -x\n#LAKE 'x\n"
    (tmp_path / "job.sh").write_text(f"#!/bin/bash\n{header}export MASTER_ADDR=$(hostname -i)\n")

    found = hpc_amp(environ, tmp_path, "lint", "job.sh")

    assert found.returncode == 1, found.stderr
    assert [line for line in found.stdout.splitlines() if line.startswith("job.sh:")] == [
        "job.sh:3: error [unknown-option] Lake has no option `--tyme`, and refuses the script",
        "job.sh:4: warning [directive-commented-out] the blank after `#` makes this line "
        "a comment: `# LAKE -x` is not read",
        "job.sh:5: error [unmatched-quote] Lake refuses the script: the quote ' does not end on "
        "this line",
        "job.sh:6: warning [hostname-address] `hostname -i` may print 127.0.1.1, several "
        "addresses, or an address of another network",
    ]
    assert 'MASTER_ADDR="$LAKE_FIRST"' in found.stdout


def test_the_renderer_refuses_what_a_scheduler_of_another_package_would(
    environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text("name: x\nsite: ./site.yaml\nrun: [a]\njob: {nodes: 1}\n")
    site = tmp_path / "site.yaml"
    site.write_text("scheduler: lake\ndirectives: [--tyme=5]\n")

    refused = hpc_amp(environ, tmp_path, "render", "job.yaml")
    site.write_text("scheduler: lake\ndirectives: [--time=5]\n")
    rendered = hpc_amp(environ, tmp_path, "render", "job.yaml")

    assert refused.returncode == 2
    assert "the directive `#LAKE --tyme=5`: Lake has no option `--tyme`" in refused.stderr
    assert rendered.returncode == 0, rendered.stderr
    lines = rendered.stdout.splitlines()
    assert "#LAKE --time=5" in lines and "#LAKE --nodes=1" in lines
    assert "#LAKE --time=3600" not in lines


def test_a_grammar_has_the_name_of_its_scheduler() -> None:
    own = {name: SCHEDULERS.get(name).grammar for name in SCHEDULERS.names()}

    assert {name for name, grammar in own.items() if grammar} == {one.name for one in grammars()}
    for name, grammar in own.items():
        assert grammar is None or (grammar.name, grammar.title) == (
            name,
            SCHEDULERS.get(name).title,
        )


class WholeWords(Grammar):
    """Options of whole words behind one dash, some with two words for their value."""

    name = title = command = "whole"
    marker = "#$"
    options = OptionTable(spellings("pe N l", dash="-"), spellings("cwd V", dash="-"))
    values = {"pe": 2}  # noqa: RUF012
    whole_words = True

    def split(self, text: str, line: int = 1) -> Split:
        return plain_words(text, line)


@pytest.mark.parametrize(
    ("text", "options", "strays", "no_value"),
    [
        ("-cwd -pe mpi 4 -N x", [("cwd", None), ("pe", "mpi 4"), ("N", "x")], [], []),
        ("-N a b -V", [("N", "a")], ["b"], []),
        ("-V -pe mpi", [("V", None)], ["mpi"], ["pe"]),
        ("-unknown -V", [("unknown", None), ("V", None)], [], []),
    ],
)
def test_options_that_are_whole_words(
    text: str, options: list[tuple[str, str | None]], strays: list[str], no_value: list[str]
) -> None:
    found = WholeWords().parse_line(text)

    assert [(one.name, one.value) for one in found.options] == options
    assert [one.text for one in found.strays] == strays
    assert [one.name for one in found.no_value] == no_value
