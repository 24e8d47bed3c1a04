"""Every code block of README.md and docs/*.md: Python runs, configurations are valid, commands are
those of the real command line, and what cannot run says why."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result
from support.documents import (
    EVERYBODYS,
    OTHERS,
    Block,
    blocks_of,
    commands_of,
    documented_blocks,
    kind_of,
    programs_of,
)
from support.environment import REPOSITORY, clean_environ
from support.warm import Warm

from hpc_amp.cli.app import app
from hpc_amp.errors import HpcAmpError
from hpc_amp.explain.failures import read_failures

BLOCKS = documented_blocks()
SETUPS = REPOSITORY / "tests" / "support" / "setups"
GIVEN = REPOSITORY / "tests" / "support" / "documented"


def of_kind(*kinds: str) -> list[Any]:
    return [pytest.param(one, id=one.place) for one in BLOCKS if kind_of(one) in kinds]


# ---- what the source says of a block -------------------------------------------------------------
@pytest.mark.parametrize("block", [pytest.param(one, id=one.place) for one in BLOCKS])
def test_every_block_is_treated(block: Block) -> None:
    kind = kind_of(block)

    assert kind != "unknown", f"{block.place}: nobody knows how to try out {block.language!r}"
    if kind == "output":
        assert block.not_run, f"{block.place}: say why it is not run: <!-- not run: REASON -->"
    if block.not_run is not None:
        assert len(block.not_run.split()) >= 3, f"{block.place}: that is not a reason"
    if block.setup is not None:
        assert kind == "python" and (SETUPS / f"{block.setup}.py").is_file()


def test_blocks_are_read_as_they_are_shown() -> None:
    text = "a\n\n    one\n\n    two\n\n<!-- not run: for this reason -->\n```text\n  x\n```\n"
    text += "<!-- setup: training -->\n\n```python\ny\n```\n- a\n  - b\n"

    found = blocks_of(text, "F")

    assert [(one.language, one.line, one.text) for one in found] == [
        ("indented", 3, "one\n\ntwo\n"), ("text", 9, "  x\n"), ("python", 14, "y\n"),
    ]  # fmt: skip
    assert [(one.not_run, one.setup) for one in found] == [
        (None, None), ("for this reason", None), (None, "training"),
    ]  # fmt: skip


# ---- Python --------------------------------------------------------------------------------------
@pytest.mark.parametrize("block", of_kind("python"))
def test_python_runs(block: Block, project: Path, warm: Warm) -> None:
    if block.not_run is not None:
        compile(block.text, block.place, "exec")
        return
    setup = f"from support.setups.{block.setup} import *\n" if block.setup else ""
    Path("block.py").write_text(setup + block.text)

    ended = warm.run("block.py")

    assert ended.returncode == 0, f"{block.place}:\n{ended.stderr}"


# ---- configurations ------------------------------------------------------------------------------
@pytest.mark.parametrize("block", [one for one in of_kind("yaml") if not one.values[0].not_run])
def test_configurations_are_valid(block: Block, project: Path) -> None:
    content = yaml.safe_load(block.text)
    if block.not_run is not None:
        assert isinstance(content, dict)
    elif isinstance(content, list):
        failures_are_right(block)
    elif "scheduler" in content:
        site = Path.home() / ".config" / "hpc-amp" / "sites" / "documented.yaml"
        site.parent.mkdir(parents=True)
        site.write_text(block.text)
        succeeds("validate", "job.yaml", "site=documented")
    else:
        Path("block.yaml").write_text(block.text)
        image = ["container.image=pytorch.sif"] if "container" in content else []
        succeeds("validate", "block.yaml", f"site={block.site}", *image)


def failures_are_right(block: Block) -> None:
    """Each sample of an entry fits it, and what is near to it does not."""
    Path("block.yaml").write_text(block.text)
    for failure in read_failures(Path("block.yaml")):
        assert all(failure.match(sample) for sample in failure.samples)
        assert not any(failure.match(line) for line in failure.near)


# ---- commands ------------------------------------------------------------------------------------
@pytest.mark.parametrize("block", of_kind("commands", "console"))
def test_commands_are_those_of_the_command_line(
    block: Block, project: Path, parse: Callable[[list[str]], tuple[str, dict[str, Any]]]
) -> None:
    folder = REPOSITORY
    for line in commands_of(block):
        for words in programs_of(line):
            program = Path(words[0]).name
            if program == "hpc-amp":
                verb, params = parse(words[1:])
                if block.not_run is None:
                    try_out(verb, params, words[1:], block.site)
            elif program == "cd":
                folder = folder / words[1]
                assert folder.is_dir(), line
            elif program not in EVERYBODYS:
                assert program in OTHERS, f"{block.place}: {program} is not known here"
                OTHER_CHECKS[program](words, folder)


@pytest.mark.parametrize("block", of_kind("console"))
def test_a_transcript_shows_what_is_printed(block: Block, project: Path) -> None:
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        line, _, shown = part.partition("\n")

        assert run(*shlex.split(line)[1:]).output == shown


def try_out(verb: str, params: dict[str, Any], words: list[str], site: str) -> None:
    """Do what a command says, as far as that needs no cluster; else look at its job file."""
    if verb in (
        "validate",
        "render",
        "container list",
        "container def ngc",
        "container def debian",
    ):
        succeeds(*words)
    elif verb == "init":
        source = Path(words[1]) if len(words) > 1 else None
        target = source.with_suffix(".yaml") if source else Path("job.yaml")
        if source is not None and not source.exists():
            source.write_text("#!/bin/bash\n#SBATCH -N 2\nsrun python train.py\n")
        target.unlink(missing_ok=True)
        succeeds(*words)
    elif verb in ("lint", "migrate") or (verb == "explain" and is_given(params)):
        assert run(*words).exit_code in (0, 1)
    elif verb in ("bench start", "scale start", "sweep start"):
        at = words.index("--") if "--" in words else len(words)  # arguments of a program follow
        succeeds(*words[:at], "--dry-run", *words[at:])
    elif params.get("config") is not None and not words[1].startswith(("runs/", "site=")):
        overrides = list(params["overrides"])
        if not any(one.startswith("site=") for one in overrides):
            overrides.append(f"site={site}")
        succeeds("validate", str(params["config"]), *overrides)
    elif verb == "shell" and params["words"] and Path(params["words"][0]).is_file():
        succeeds("validate", *params["words"])


def is_given(params: dict[str, Any]) -> bool:
    target = params["target"]
    return params["as_list"] or target == "-" or Path(target).is_file()


def run(*words: str) -> Result:
    result = CliRunner().invoke(app, list(words), input="slurmstepd: error: Detected 1 oom_kill\n")
    error = result.exception
    if error is not None and not isinstance(error, SystemExit | HpcAmpError):
        raise error
    assert not isinstance(error, HpcAmpError), f"hpc-amp {shlex.join(words)}: {error}"
    return result


def succeeds(*words: str) -> None:
    result = run(*words)
    assert result.exit_code == 0, f"hpc-amp {shlex.join(words)}: {result.output}"


def _make(words: list[str], folder: Path) -> None:
    targets = re.findall(r"^([\w-]+):", (folder / "Makefile").read_text(), re.MULTILINE)
    assert set(words[1:]) <= set(targets)


def _pip(words: list[str], folder: Path) -> None:
    assert words[1] == "install"
    extras = re.search(r"hpc-amp\[(.*)\]", words[2])
    project = (folder / "pyproject.toml").read_text()
    for extra in extras[1].split(",") if extras else []:
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE), extra


def _script(words: list[str], folder: Path) -> None:
    """The script or module is there, and it, or one beside it, has each option."""
    if words[1] == "-m":
        at, script = 2, REPOSITORY / f"{words[2].replace('.', '/')}.py"
    else:
        at = next(index for index, word in enumerate(words) if word.endswith(".py"))
        script = folder / words[at]
    assert script.is_file(), script
    source = "".join(path.read_text() for path in script.parent.glob("*.py"))
    for word in words[at + 1 :]:
        if word.startswith("-"):
            assert f'"{word.partition("=")[0]}"' in source, word


OTHER_CHECKS = {"make": _make, "pip": _pip, "python": _script, "torchrun": _script}


# ---- fixtures ------------------------------------------------------------------------------------
@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the documents speak of, and a home without settings."""
    for name in set(os.environ) - set(clean_environ()):
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    folder = tmp_path / "project"
    shutil.copytree(GIVEN, folder)
    (folder / "pytorch.sif").write_text("hsqs: the beginning of an image")
    (folder / "configs").symlink_to(REPOSITORY / "configs")
    for name in (
        "cats",
        "dog.png",
        "fox_photos",
        "instances",
        "maps",
        "points",
        "references",
        "sequences",
    ):
        (folder / name).mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], tuple[str, dict[str, Any]]]:
    """What the real command line understands, without doing it: the verb, and its arguments.
    Raises click.UsageError."""

    def parse(words: list[str]) -> tuple[str, dict[str, Any]]:
        with monkeypatch.context() as patch:
            take_over(patch, app, "")
            result: tuple[str, dict[str, Any]] = app.main(
                words, prog_name="hpc-amp", standalone_mode=False
            )
        return result

    return parse


def take_over(patch: pytest.MonkeyPatch, command: click.Command, verb: str) -> None:
    """Let each command give back its name and its arguments instead of acting."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            take_over(patch, inner, f"{verb} {name}".strip())
    else:
        patch.setattr(command, "callback", lambda *_, **params: (verb, params))
