"""Lint's verdicts on PBS headers against those of a real qsub (OpenPBS 23.06.06)."""

from __future__ import annotations

import pytest
from support.qsub_verdicts import REFUSED, TAKEN, headers

from hpc_amp.lint.linter import lint


def script(lines: str) -> bytes:
    header = "".join(f"#PBS {line}\n" for line in lines.split("\n"))
    return f"#!/bin/bash\n#PBS -h\n{header}sleep 1\n".encode()


def errors(text: bytes) -> list[str]:
    return [found.id for found in lint(text, "job.sh") if found.severity == "error"]


@pytest.mark.parametrize("lines", headers(REFUSED))
def test_what_qsub_refuses_is_an_error(lines: str) -> None:
    assert errors(script(lines)) != []


@pytest.mark.parametrize("lines", headers(TAKEN))
def test_what_qsub_takes_is_none(lines: str) -> None:
    assert errors(script(lines)) == []


@pytest.mark.parametrize(
    "lines",
    [
        "-N <name>", "-N {{ name }}", "-N [name]", "-l select=<N>:ncpus=<M>", "-J 1-$N",
        "-l walltime=hh:mm:ss", "-l walltime={{ time }}", "-W depend=afterok:<id>",
    ],
)  # fmt: skip
def test_what_a_template_leaves_open_is_none(lines: str) -> None:
    assert "bad-value" not in errors(script(lines))


@pytest.mark.parametrize(
    ("colon", "goes_on"),
    [
        (":", True), (": x", True), (":x", True), (": ", True),
        ("  :", False), (" : x", False), ("\t:", False), ("true", False),
    ],
)  # fmt: skip
def test_a_line_that_begins_with_a_colon_does_not_end_the_header(colon: str, goes_on: bool) -> None:
    text = f"#!/bin/bash\n{colon}\n#PBS -N x%y\nsleep 1\n".encode()

    assert ("bad-value" in errors(text)) == goes_on
    assert ("directive-never-read" in errors(text)) != goes_on


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("#PBS -N a \\\n-l walltime=60", []),
        ("#PBS -N a \\\n-j oe \\\n-l walltime=60", []),
        ("#PBS -N a \\ \n-j oe", []),
        ("#PBS -N a\\\nb", []),
        ("#PBS -N a \\\n\n#PBS -j oe", []),
        ("#PBS -N a \\\n-l walltime=24h", ["bad-value"]),
        ("#PBS -N a \\\nfoo", ["stray-word"]),
        ("#PBS -N a \\\n#PBS -l walltime=60", ["line-continuation"]),
        ("#PBS -N a \\\n# x", ["line-continuation"]),
    ],
)
def test_a_backslash_joins_the_next_line_as_it_stands(body: str, found: list[str]) -> None:
    assert errors(f"#!/bin/bash\n{body}\nsleep 1\n".encode()) == found


def test_days_before_the_hours_are_torques() -> None:
    """Torque takes them, and its scripts ask for nodes; PBS refuses them."""
    assert "bad-value" not in errors(script("-l nodes=1:ppn=4,walltime=1:00:00:00"))
    assert "bad-value" in errors(script("-l select=1,walltime=1:00:00:00"))
