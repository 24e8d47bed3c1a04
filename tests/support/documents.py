"""The code blocks of the documentation, and what its source says of each.

A comment in front of a block, which no reader of the page sees, says what is special about it:

    <!-- not run: it submits a job -->   the block cannot run here, and why
    <!-- setup: training -->             names of tests/support/setups/training.py that it needs
    <!-- site: pbs -->                   the site that its commands are for, where that is not slurm
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from support.environment import REPOSITORY

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<language>[^\n]*)$")
_REDIRECTION = re.compile(r"\d?[<>]+(?:&\d)?$")
_VARIABLE = re.compile(r"[A-Z_]+=")
_REMARK = re.compile(r"^\s*<!-- (?P<kind>not run|setup|site): (?P<text>.+?) -->\s*$")


@dataclass(frozen=True)
class Block:
    """`language` is what stands behind the fence, `indented` for a block without one. `line` is
    that of its first line of code."""

    file: str
    line: int
    language: str
    text: str
    not_run: str | None = None
    setup: str | None = None
    site: str = "slurm"

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


def blocks_of(text: str, file: str) -> list[Block]:
    """The blocks of one Markdown file, in order."""
    lines = text.split("\n")
    found = []
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence is not None:
            end = at + 1
            while end < len(lines) and lines[end].strip() != fence["fence"]:
                end += 1
            body, start, language = lines[at + 1 : end], at + 1, fence["language"].strip()
            remarks = _remarks(lines, at)
            indent, at = len(fence["indent"]), end + 1
        elif lines[at].startswith("    ") and (at == 0 or not lines[at - 1].strip()):
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            body, start, language, indent = lines[at:end], at, "indented", 4
            remarks, at = _remarks(lines, at), end
        else:
            at += 1
            continue
        code = "\n".join(line[indent:] for line in body).rstrip() + "\n"
        found.append(Block(file, start + 1, language, code, **remarks))
    return found


def _remarks(lines: list[str], at: int) -> dict[str, str]:
    """What the comments say that stand right in front of line `at`."""
    remarks = {}
    before = at - 1
    while before >= 0:
        match = _REMARK.match(lines[before])
        if match is not None:
            remarks[match["kind"].replace(" ", "_")] = match["text"]
        elif lines[before].strip():
            break
        before -= 1
    return remarks


def documented_blocks() -> list[Block]:
    """All blocks of README.md and docs/*.md."""
    files = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
    return [block for file in files for block in blocks_of(file.read_text(), _name(file))]


def _name(file: Path) -> str:
    return str(file.relative_to(REPOSITORY))


# Programs besides hpc-amp whose lines are looked at, and those that are everybody's.
OTHERS = {"make", "pip", "python", "torchrun", "cd"}
EVERYBODYS = {"echo", "sacct"}


def kind_of(block: Block) -> str:
    """How a block is treated."""
    if block.language in ("python", "yaml", "console"):
        return block.language
    if block.text.startswith("#!"):
        return "output"  # a whole script, and no commands to type
    if block.language in ("sh", "shell", "bash"):
        return "commands"
    if block.language == "toml":
        return "output"  # a part of a file of somebody else's
    if block.language not in ("", "text", "diff", "indented"):
        return "unknown"
    if block.language == "indented":
        first = program_of(commands_of(block)[0])
        if first == "hpc-amp" or first in OTHERS | EVERYBODYS:
            return "commands"
        if block.text.startswith(("import ", "from ")):
            return "python"
    said_by_program = all(
        re.match(r"hpc-amp: |note: |\S+\.yaml:\d+: ", one) for one in lines_of(block)
    )
    return "message" if said_by_program else "output"


def lines_of(block: Block) -> list[str]:
    return block.text.rstrip("\n").split("\n")


def commands_of(block: Block) -> list[str]:
    """The command lines of a block, those that go on on the next line joined."""
    text = re.sub(r"\\\n\s*", " ", block.text)
    lines = [line for line in text.split("\n") if line.strip()]
    prompts = [line[2:] for line in lines if line.startswith("$ ")]
    return prompts or [line for line in lines if not line.startswith("#")]


def programs_of(line: str) -> list[list[str]]:
    """The commands of a line, without variables in front of them and without redirections."""
    found: list[list[str]] = [[]]
    words = shlex.split(line, comments=True)
    for before, word in zip(["", *words], words, strict=False):
        if word in ("|", "&&", "||", ";"):
            found.append([])
        elif not _REDIRECTION.match(word) and before not in (">", ">>", "<", "2>"):
            is_variable = not found[-1] and _VARIABLE.match(word)
            found[-1] += [] if is_variable else [word]
    return [one for one in found if one]


def program_of(line: str) -> str:
    try:
        programs = programs_of(line)
    except ValueError:  # a quote that does not end: no command
        return ""
    return Path(programs[0][0]).name if programs and programs[0] else ""
