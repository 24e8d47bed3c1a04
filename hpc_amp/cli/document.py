"""Generates `docs/commands.md`, the reference of all commands, from their `--help` texts.

python -m hpc_amp.cli.document            # writes it
python -m hpc_amp.cli.document --check    # exits with 1 if it is out of date
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator

import click

from hpc_amp.cli.app import ENVIRONMENT, SECTIONS, app
from hpc_amp.documents import DOCS, write_or_check

_HEAD = """# All commands

<!-- made by `python -m hpc_amp.cli.document` -->

`hpc-amp COMMAND --help` prints the same text. CONFIG is a job file. submit, run, sweep,
render, validate, config and doctor also take a program, or a run directory, whose job runs again.
KEY=VALUE replaces one value. RUN is a run directory, a job id, or the name of a job (its newest
run).

## Environment variables

| variable | meaning |
|---|---|
"""


def page() -> str:
    """The page as Markdown."""
    context = click.Context(app, info_name="hpc-amp")
    rows = [f"| `{name}` | {meaning} |\n" for name, meaning in ENVIRONMENT.items()]
    parts = [_HEAD + "".join(rows)]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        for name in names:
            command = app.get_command(context, name)
            assert command is not None
            parts += _command(command, click.Context(command, context, info_name=name), "###")
    return "\n".join(parts)


def _command(command: click.Command, context: click.Context, level: str) -> Iterator[str]:
    """The parts about one command and, if it is a group, about its commands."""
    words = " ".join(command.collect_usage_pieces(context))
    yield f"{level} {context.command_path.removeprefix('hpc-amp ')}\n"
    yield f"`{context.command_path} {words}`\n"
    yield from _prose(command.help or "")
    records = [one.get_help_record(context) for one in command.get_params(context)]
    rows = [
        f"| `{record[0]}` | {_cell(record[1])} |\n"
        for record in records
        if record is not None and record[1] and "--help" not in record[0]
    ]
    if rows:
        yield "| option | what it does |\n|---|---|\n" + "".join(rows)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            member = command.get_command(context, name)
            assert member is not None
            yield from _command(member, click.Context(member, context, info_name=name), f"{level}#")


def _prose(text: str) -> Iterator[str]:
    """The paragraphs of a help text. Those that click does not wrap are examples."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if not paragraph.startswith("\b"):
            yield " ".join(paragraph.split()).replace("<", "&lt;").replace("*", "\\*") + "\n"
            continue
        lines = textwrap.dedent(paragraph.removeprefix("\b\n")).splitlines()
        if lines[0].endswith(":"):
            yield lines.pop(0).strip() + "\n"
        if not all(line.strip().startswith("hpc-amp ") for line in lines):
            yield "<!-- not run: it is for a file of your shell -->\n"
        example = [re.sub(r"(?<=\S)\s{3,}(?=\S)", "  # ", line.strip()) for line in lines]
        yield textwrap.indent("\n".join(example), "    ") + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def main(arguments: list[str]) -> int:
    """Write docs/commands.md, or with `--check` compare it. Returns the exit status."""
    return write_or_check(DOCS / "commands.md", page(), arguments, "hpc_amp.cli.document")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
