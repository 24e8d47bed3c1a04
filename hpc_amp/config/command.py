"""Find a launcher in the user's command (`run`): a program that starts ranks itself.

hpc-amp starts the command once for each rank. A launcher in it would start further ranks in each
rank, and each of these groups would be a world of its own.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hpc_amp.containers import CONTAINERS
from hpc_amp.containers.base import Wrapper
from hpc_amp.lint.shell import ASSIGNMENT, read_shell
from hpc_amp.registry import RegistryError

# Launchers of MPI or of a scheduler.
_MPI_LAUNCHERS = {
    *("mpirun", "mpiexec", "mpiexec.hydra", "mpirun_rsh", "orterun", "prun", "prterun"),
    *("srun", "aprun", "jsrun", "lrun", "ibrun", "horovodrun"),
}
_LAUNCHERS = {
    *_MPI_LAUNCHERS,
    *("torchrun", "torchrun_jsc", "torchrun-hpc", "deepspeed", "composer", "accelerate-launch"),
}
# Programs with one subcommand that is a launcher.
_COMMANDS = {
    "accelerate": "launch",
    "fabric": "run",
    "lightning": "run",
    "colossalai": "run",
    "flux": "run",
}
_MODULES = {
    *("torch.distributed.run", "torch.distributed.launch", "torchrun_jsc"),
    *("accelerate.commands.launch", "deepspeed.launcher.runner", "deepspeed.launcher.launch"),
    *("horovod.runner.launch", "horovod.runner"),
}
_MODULE_COMMANDS = {"accelerate.commands.accelerate_cli": "launch", "accelerate": "launch"}
_PRINTS_AND_EXITS = {"--help", "-h", "--version", "-V", "--usage", "--check-build", "-cb"}


def _wrapper(values: str = "", words: int = 0, first: tuple[str, ...] = ()) -> Wrapper:
    return Wrapper(frozenset(values.split()), words, first)


_RUN = _wrapper(
    "-n --name -p --prefix --cwd --with --project --directory --extra", words=1, first=("run",)
)
_WRAPPERS = {
    **dict.fromkeys(("nohup", "setsid", "unbuffer", "builtin"), _wrapper()),
    "command": _wrapper(),
    "exec": _wrapper("-a"),
    "nice": _wrapper("-n --adjustment"),
    "ionice": _wrapper("-c -n --class --classdata"),
    "timeout": _wrapper("-k -s --kill-after --signal", words=1),
    "time": _wrapper("-f -o --format --output"),
    "stdbuf": _wrapper("-i -o -e --input --output --error"),
    "numactl": _wrapper(
        "-i -p -m -N -C --interleave --preferred --membind --cpunodebind --physcpubind"
    ),
    "taskset": _wrapper(words=1),
    "chrt": _wrapper(words=1),
    "nsys": _wrapper(
        "-o -t -s -c -f --output --trace --sample --capture-range", 1, ("profile", "launch")
    ),
    "strace": _wrapper("-e -o -s -p -P -u"),
    **dict.fromkeys(("conda", "mamba", "micromamba", "uv", "poetry", "pipenv", "pixi"), _RUN),
}
_ENV_VALUES = {"-u", "--unset", "-C", "--chdir"}
_SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "mksh"}
# Options with a value in the next word: the name of a setting or the path of a file.
_SHELL_VALUES = re.compile(r"[-+][A-Za-z]*[oO]|--rcfile|--init-file")
_PYTHON = re.compile(r"python[0-9.]*|pypy[0-9.]*")
_PYTHON_VALUES = re.compile(r"-[^WXmc-]*[WX]|--check-hash-based-pycs")
_MAX_DEPTH = 8


class CommandLauncher(NamedTuple):
    """A launcher that a command starts."""

    name: str
    """The usual form: `torchrun`, `accelerate launch`, `python -m torch.distributed.run`."""
    arguments: tuple[str, ...]

    @property
    def is_mpi(self) -> bool:
        """Whether the programs that it starts may use MPI."""
        return self.name in _MPI_LAUNCHERS

    @property
    def program(self) -> list[str] | None:
        """The Python program that it starts, as a command without the launcher. None if the
        arguments do not show which program that is."""
        for index, word in enumerate(self.arguments):
            rest = list(self.arguments[index:])
            if _PYTHON.fullmatch(_base(word)):
                return ["python", *rest[1:]]
            if word in ("-m", "--module") and not self.is_mpi and len(rest) > 1:
                return ["python", "-m", *rest[1:]]
            if word.endswith(".py") and not word.startswith("-"):
                return ["python", *rest]
        return None


def launcher_in(words: Sequence[str], depth: int = 0) -> CommandLauncher | None:
    """Find the launcher that a command starts, directly or through `env`, `exec`, `bash -c '...'`
    and similar programs. Returns None if the command starts no launcher. The name of a launcher
    among the arguments of another program does not count. `depth` counts nested shell texts."""
    rest = list(words)
    while rest:
        name = _base(rest[0])
        if ASSIGNMENT.match(rest[0]):
            rest = rest[1:]
        elif name == "env":
            rest = _behind_env(rest[1:])
        elif name in _WRAPPERS:
            rest = _behind_wrapper(name, _WRAPPERS[name], rest[1:])
        elif name in _SHELLS:
            text, _ = _of_shell(rest[1:])
            return _in_text(text, depth)
        elif name == "eval":
            return _in_text(" ".join(rest[1:]), depth)
        elif _PYTHON.fullmatch(name):
            return _in_python(rest)
        elif name in _runtimes():
            rest = _behind_wrapper(name, _runtimes()[name], rest[1:])
        else:
            return _launcher(name, rest[1:])
    return None


def script_in(words: Sequence[str]) -> str | None:
    """The path of the shell script that a command runs, as in `bash run.sh` or `./run.sh`. None if
    it runs no script."""
    if not words:
        return None
    if _base(words[0]) not in _SHELLS:
        return words[0] if words[0].endswith(".sh") else None
    _, file = _of_shell(list(words[1:]))
    return file


def program_in(words: Sequence[str]) -> str | None:
    """The path of the file that a command starts, as in `python train.py`, `bash run.sh` or
    `./train`. None if the words do not show it, or the program is searched in PATH."""
    if not words:
        return None
    if _PYTHON.fullmatch(_base(words[0])):
        at = 1
        while at < len(words) and words[at].startswith("-"):
            if re.fullmatch(r"-[^WXmc-]*[mc].*|-", words[at]):
                return None
            at += 2 if _PYTHON_VALUES.fullmatch(words[at]) else 1
        return words[at] if at < len(words) else None
    if _base(words[0]) in _SHELLS:
        return script_in(words)
    return words[0] if "/" in words[0] else None


def launchers_in_script(text: str) -> Iterator[tuple[int, CommandLauncher]]:
    """Yield the launchers that a shell script starts, each with its line number (from 1)."""
    for command in read_shell(text).commands:
        found = launcher_in([word.text for word in command.words], depth=1)
        if found is not None:
            yield command.line, found


_LOCAL_RANK = re.compile(r"""add_argument\(\s*["']--local[-_]rank["'](?P<rest>[^)]*)""")
# The variables that torchrun and hpc-amp, Slurm and MPI set for each rank.
_RANK_VARIABLES = re.compile(r"LOCAL_RANK|LOCALID|LOCALRANKID")
# Packages that read these variables themselves.
_RANK_PACKAGES = re.compile(r"deepspeed|\baccelerate\b|TrainingArguments|lightning")


def reads_local_rank(text: str) -> bool:
    """Whether a Python program, or a package that it names, takes the local rank from variables."""
    return bool(_RANK_VARIABLES.search(text) or _RANK_PACKAGES.search(text))


def local_rank_argument(text: str) -> tuple[int, str] | None:
    """The option `--local_rank` of a Python program that does not read the variables of launchers:
    its line number (from 1) and the text of its default. None if there is no such option.

    Only the old `python -m torch.distributed.launch` sets this option. With any other launcher,
    every rank has the default.
    """
    found = _LOCAL_RANK.search(text)
    if found is None or reads_local_rank(text):
        return None
    default = re.search(r"\bdefault\s*=\s*([^,\s)]+)", found["rest"])
    return text.count("\n", 0, found.start()) + 1, default[1] if default else "None"


def _base(word: str) -> str:
    return word.rpartition("/")[2]


def _launcher(name: str, rest: Sequence[str]) -> CommandLauncher | None:
    if rest and rest[0] in _PRINTS_AND_EXITS:
        return None
    if name in _LAUNCHERS:
        return CommandLauncher(name, tuple(rest))
    return _command(name, name, _COMMANDS.get(name), rest)


def _command(
    shown: str, name: str, command: str | None, rest: Sequence[str]
) -> CommandLauncher | None:
    """A program that is a launcher if its first argument is `command`."""
    if command is None or rest[:1] != [command] or (rest[1:] and rest[1] in _PRINTS_AND_EXITS):
        return None
    return CommandLauncher(f"{shown} {command}", tuple(rest[1:]))


def _in_python(words: list[str]) -> CommandLauncher | None:
    """The launcher that the interpreter `words[0]` runs, as a module or as a script."""
    at = 1
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        letters = re.fullmatch(r"-[^WXmc-]*([mc])(.*)", word)
        if letters is None:
            at += 2 if _PYTHON_VALUES.fullmatch(word) else 1
            continue
        rest = words[at + 1 :]
        given = [letters[2], *rest] if letters[2] else rest
        if letters[1] == "c" or not given:
            return None
        return _in_module(given[0], given[1:])
    if at >= len(words):
        return None
    return _launcher(_base(words[at]), words[at + 1 :])


def _in_module(module: str, rest: list[str]) -> CommandLauncher | None:
    if rest and rest[0] in _PRINTS_AND_EXITS:
        return None
    if module in _MODULES:
        return CommandLauncher(f"python -m {module}", tuple(rest))
    return _command(f"python -m {module}", module, _MODULE_COMMANDS.get(module), rest)


def _behind_env(words: list[str]) -> list[str]:
    """The command that `env` starts."""
    at = 0
    while at < len(words):
        word = words[at]
        if word in ("-S", "--split-string"):
            return [*" ".join(words[at + 1 : at + 2]).split(), *words[at + 2 :]]
        if word.startswith("-"):
            at += 2 if word in _ENV_VALUES else 1
        elif "=" in word:
            at += 1
        else:
            break
    return words[at:]


@functools.cache
def _runtimes() -> Mapping[str, Wrapper]:
    """The programs of all container runtimes that start a command in a container. A runtime that
    cannot be imported is left out: the error is shown to users who choose it."""
    found: dict[str, Wrapper] = {}
    for name in CONTAINERS.names():
        with contextlib.suppress(RegistryError):
            found.update(CONTAINERS.get(name).wraps)
    return found


def _behind_wrapper(name: str, wrapper: Wrapper, words: list[str]) -> list[str]:
    """The command that a wrapper starts. Empty if it starts none, as `command -v srun`."""
    at, between = 0, wrapper.words
    while at < len(words):
        word = words[at]
        if word == "--":
            at += 1
            break
        if name == "command" and word in ("-v", "-V"):
            return []
        if word.startswith("-"):
            at += 2 if word in wrapper.values else 1
        elif between:
            if wrapper.first and between == wrapper.words and word not in wrapper.first:
                return []
            between -= 1
            at += 1
        else:
            break
    return words[at + between :]


def _of_shell(words: list[str]) -> tuple[str, str | None]:
    """What a shell runs: the text that follows `-c` or `-lc`, or the path of a script."""
    at, is_text = 0, False
    while at < len(words) and words[at][:1] in ("-", "+"):
        word = words[at]
        is_text = is_text or re.fullmatch(r"-[A-Za-z]*c[A-Za-z]*", word) is not None
        at += 2 if _SHELL_VALUES.fullmatch(word) else 1
    if at >= len(words):
        return "", None
    return (words[at], None) if is_text else ("", words[at])


def _in_text(text: str, depth: int) -> CommandLauncher | None:
    if depth >= _MAX_DEPTH:
        return None
    for command in read_shell(text).commands:
        found = launcher_in([word.text for word in command.words], depth + 1)
        if found is not None:
            return found
    return None
