"""The job file of a program that is given in its place: `hpc-amp submit train.py -- --lr 0.1`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from hpc_amp.config.load import JobText
from hpc_amp.config.write import to_text
from hpc_amp.errors import UsageError, to_type
from hpc_amp.jobs.places import LATEST, follow_latest, newest_in

_IMAGES = (".sif", ".simg", ".sqsh", ".squashfs")
_JOB_FILES = (".yaml", ".yml", ".json")
_DIRECTIVE = re.compile(rb"^#(SBATCH|PBS|COBALT|\$) ", re.MULTILINE)
_NO_NAME = re.compile(r"[^A-Za-z0-9_.-]+")
_NEGATIVE = re.compile(r"-\.?\d")
_QUOTED = re.compile(r"""'[^']*,[^']*'|"[^"]*,[^"]*\"""")
_HEAD = 64 * 2**10
_STARTER = """\
# Each rank runs the command `run`, with RANK, WORLD_SIZE and others of torch.distributed set.
code: null                     # a folder: it is copied, and `run` starts in the copy

job:
  nodes: 1
  gpus_per_node: 1             # one rank for each GPU
  walltime: "01:00:00"         # of one attempt; a run that was stopped by it starts again
  # queue: gpu
  # account: my_project
  # setup: module load apptainer

container:
  image: null                  # path of a .sif file
"""


def job_or_program(given: Path, arguments: Sequence[str]) -> Path | JobText:
    """`given` itself if it is a job file, else the job of the run `given`, or the job that runs the
    program `given` with `arguments`. Raises UsageError for anything else, with what to type."""
    if given.name == LATEST:
        given = follow_latest(given)
    if (given / "job.json").is_file() and not arguments:
        from hpc_amp.jobs.again import again  # only for a run: it takes half of this module's time

        return again(given)
    if given.is_dir():
        raise UsageError(f"{given} is a folder", hint="name a job file or a program in it")
    if given.suffix in _IMAGES:
        raise UsageError(
            f"{given} is a container image",
            hint=f"name a program too: {to_type('submit', 'train.py', '--image', given)}",
        )
    if given.suffix in _JOB_FILES or not given.is_file():
        _refuse_name_of_run(given)
        if arguments and not given.is_file():
            raise UsageError(f"there is no file {given}")
        if arguments:
            raise UsageError(
                f"arguments after -- are for a program, and {given} is not one",
                hint="write them in the job file's key run",
            )
        return given
    if is_job_script(given):
        raise UsageError(
            f"{given} is a job script with directives of its own",
            hint=f"{to_type('init', given)} drafts a job file from it",
        )
    command = _command(given)
    if command is None:
        return given  # a job file with a name of its own
    return JobText(given, to_text({"name": name_of(given), "run": [*command, *arguments]}))


def _refuse_name_of_run(given: Path) -> None:
    """Raise UsageError if `given` is no file, but a name that has runs: other commands take it."""
    runs = Path(os.environ.get("HPC_AMP_RUNS") or "runs")
    if given.is_file() or given.name != str(given) or newest_in(runs / given) is None:
        return
    raise UsageError(
        f"{given} is the name of a run, and no job file",
        hint=f"{to_type('submit', runs / given / LATEST)} runs its job again",
    )


def varied(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Arguments of which some have several values, `--lr=0.1,0.2` or `--lr 0.1,0.2`: the arguments
    with a name in place of the values, `--lr={lr}`, and the overrides that give the name its
    values. A value in quotes has its comma in it, and the program gets it without them. Raises
    UsageError for `--range 1,2 3,4`: only one word varies with an argument."""
    from hpc_amp.campaigns.points import split_values

    words: list[str] = []
    overrides: list[str] = []
    names: set[str] = set()
    follows_values = False
    for before, word in zip(("", *arguments), arguments, strict=False):
        option, equals, text = word.partition("=")
        if not _is_option(option):
            option, equals, text = before, "", word  # it may be the value of the word before
        several = len(split_values(text)) > 1 or _QUOTED.fullmatch(text) is not None
        if follows_values and several and not _is_option(option):
            raise UsageError(
                f"an argument has several values in two words: {before} {word}",
                hint=f"name both: values.a={before} values.b={word} -- ... {{a}} {{b}}",
            )
        varies = several and _is_option(option) and "=" not in option
        if varies:
            name = value_name(option)
            while name in names:
                name += "_"
            names.add(name)
            overrides.append(f"values.{name}={text}")
            word = f"{option}={{{name}}}" if equals else f"{{{name}}}"
        follows_values = varies and not equals
        words.append(word)
    return words, overrides


def _is_option(word: str) -> bool:
    return word.startswith("-") and not _NEGATIVE.match(word)


def with_value(arguments: Sequence[str], name: str) -> tuple[list[str], list[str]]:
    """Arguments with a name in place of the value of one of them, `--batch={batch}` for
    `--batch=64` or `--batch 64`, and the override that gives the name this value. Of several, it is
    the last one, which counts for programs. Without such an argument, they are unchanged and there
    is no override."""
    words = list(arguments)
    for index in reversed(range(len(words))):
        option, equals, text = words[index].partition("=")
        if not option.startswith("-") or value_name(option) != name:
            continue
        if equals:
            words[index] = f"{option}={{{name}}}"
            return words, [f"values.{name}={text}"]
        if index + 1 < len(words):
            text, words[index + 1] = words[index + 1], f"{{{name}}}"
            return words, [f"values.{name}={text}"]
    return words, []


def value_name(option: str) -> str:
    """The name of an argument in `values`: `batch_size` for `--batch-size`."""
    name = re.sub(r"\W", "_", option.lstrip("-"), flags=re.ASCII) or "_"
    return f"_{name}" if name[0].isdigit() else name


def draft_from_program(program: Path) -> str:
    """The text of a job file for a program, with what a user usually sets. Raises UsageError if it
    is not a program."""
    command = _command(program) if program.is_file() else None
    if command is None:
        raise UsageError(
            f"{program} is neither a program nor a job script",
            hint="name a .py file, an executable or a script with directives",
        )
    parts = _STARTER.split("\n", 1)
    run = to_text({"run": command})
    return f"{parts[0]}\n\nname: {name_of(program)}\n{run}{parts[1]}"


def is_job_script(path: Path) -> bool:
    """Whether a file has directives of a scheduler."""
    return path.suffix != ".py" and _DIRECTIVE.search(_head(path)) is not None


def name_of(path: Path) -> str:
    """A job name from the name of a file."""
    return as_name(path.stem)


def as_name(text: str) -> str:
    """A job name from any text."""
    return _NO_NAME.sub("-", text).strip("-.") or "job"


def _command(program: Path) -> list[str] | None:
    """The words that start a program; None if it is not one."""
    path = str(program)
    if path.startswith("-"):
        path = f"./{path}"
    if program.suffix == ".py":
        return ["python", path]
    # On some file systems every file is executable.
    if os.access(program, os.X_OK) and _head(program).startswith((b"#!", b"\x7fELF")):
        return [os.path.abspath(program)]
    return ["bash", path] if program.suffix == ".sh" else None


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
