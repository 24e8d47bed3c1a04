"""The state of the user's code in git, for the record of a run: commit, branch and changes.

    git.json     commit, branch, whether files were changed, names of files that git does not track
    git.patch    the changes since the commit, for `git apply`

git reads the configuration of a repository that may belong to anybody. Nothing that this names is
executed: no monitor, hook, filter, external diff or text conversion, and nothing is fetched.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpc_amp.files import read_json

if TYPE_CHECKING:
    from hpc_amp.jobs.plan import Plan

FACTS, PATCH = "git.json", "git.patch"
_SECONDS = 2.0  # for all questions together: a repository may be huge, or on a slow file server
_PATCH_LIMIT = 2**20
_NAMES = 200
_OUTPUT_LIMIT = 16 * 2**20
_OPTIONS = (
    *("--no-pager", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"),
    *("-c", "core.quotePath=false"),
)
_STATUS = (
    *("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=normal", "--no-renames"),
    "--ignore-submodules=dirty",
)
_DIFF = (
    *("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--full-index"),
    *("--binary", "--ignore-submodules=dirty", "--submodule=short", "--src-prefix=a/"),
    *("--dst-prefix=b/", "HEAD", "--"),
)


class CodeState(NamedTuple):
    """The state of the code that a run was submitted with."""

    commit: str | None
    """None: the repository has no commit yet."""
    branch: str | None
    """None: no branch was checked out."""
    dirty: bool | None
    """Whether files that git tracks had been changed. None: it is unknown."""
    untracked: int
    """How many files and folders git did not track."""
    changes: str | None
    """A hash of the changes. None: there were none, or they are unknown."""

    def __str__(self) -> str:
        said = "no commit" if self.commit is None else f"commit {self.commit[:12]}"
        if self.branch is not None:
            said += f" ({self.branch})"
        if self.dirty:
            said += ", with changes"
        if self.dirty is None:
            said += ", changes unknown"
        if self.untracked:
            said += f", {self.untracked} untracked"
        return said


def read_code_state(run_dir: Path) -> CodeState | None:
    """The state of a run's code. None if it was not in a git repository."""
    facts = read_json(run_dir / FACTS)
    if not facts:
        return None
    import hashlib  # it loads OpenSSL

    try:
        changes = hashlib.sha256((run_dir / PATCH).read_bytes()).hexdigest()[:12]
    except OSError:
        changes = None
    untracked = facts.get("untracked")
    return CodeState(
        commit=facts.get("commit"),
        branch=facts.get("branch"),
        dirty=facts.get("dirty"),
        untracked=len(untracked) if isinstance(untracked, list) else 0,
        changes=changes,
    )


def record_code_state(plan: Plan, folder: Path, results: Path) -> None:
    """Write the state of the code of `plan` to `folder`. `results` is the folder of all runs, which
    is no part of the code. Nothing is written without git or a repository. Raises OSError."""
    code = plan.job.code
    if code is not None and _is_of_a_run(Path(code)):
        _copy(Path(code).parent, folder)
        return
    root = next(filter(None, map(_repository, _folders(plan))), None)
    git = shutil.which("git")
    if root is None or git is None:
        return
    try:
        found = _Repository(git, root).state(results)
    except OSError:
        return  # git cannot be started: a job does not fail for its record
    if found is None:
        return
    facts, patch = found
    (folder / FACTS).write_text(json.dumps(facts, indent=1) + "\n")
    if patch:
        (folder / PATCH).write_bytes(patch)


def _is_of_a_run(code: Path) -> bool:
    """Whether a folder is the copy of the code in another run, and not in a repository."""
    files = [code.parent / name for name in ("job.json", "state.jsonl")]
    return code.name == "code" and all(file.is_file() for file in files)


def _copy(run_dir: Path, folder: Path) -> None:
    for name in (FACTS, PATCH):
        with suppress(FileNotFoundError):
            shutil.copyfile(run_dir / name, folder / name)


def _folders(plan: Plan) -> list[Path]:
    """Where the user's code may be, the most certain place first: the folder that is copied, those
    of the files in the command, and the folder of the submission."""
    if plan.job.code is not None:
        return [Path(plan.job.code)]
    files = [plan.submitted_from / word for word in plan.job.run or []]
    return [*(path.parent for path in files if os.path.isfile(path)), plan.submitted_from]


def _repository(folder: Path) -> Path | None:
    """The top folder of the git repository in which a folder lies."""
    folder = folder.resolve()
    return next((one for one in (folder, *folder.parents) if os.path.lexists(one / ".git")), None)


class _TimeIsUp(Exception):
    """git has not answered in time."""


class _Repository:
    """Questions to git about a repository, which together may take `_SECONDS`."""

    def __init__(self, git: str, root: Path) -> None:
        self._git, self._root = git, root
        self._deadline = time.monotonic() + _SECONDS
        self._without_filters: list[str] = []

    def state(self, results: Path) -> tuple[dict[str, Any], bytes] | None:
        """The content of `git.json` and `git.patch`. None if git refuses to read the
        repository."""
        notes: list[str] = []
        facts: dict[str, Any] = {
            "root": str(self._root), "commit": None, "branch": None, "dirty": None,
            "untracked": [], "notes": notes,
        }  # fmt: skip
        patch = b""
        try:
            if not self._exclude_filters():
                notes.append("the repository's filters were not run, so changes are unknown")
                facts |= self._head()
                return (facts, patch) if facts["commit"] else None
            status, output, whole = self._ask(_STATUS)
            if status != 0 and whole:
                return None  # for example a repository of somebody else
            commit, branch, changed, untracked = _read_status(output, self._root, results)
            facts |= {"commit": commit, "branch": branch, "dirty": bool(changed)}
            facts["untracked"] = untracked[:_NAMES]
            if len(untracked) > _NAMES or not whole:
                notes.append(f"only the first {len(facts['untracked'])} untracked names are listed")
            if changed and commit:
                patch = self._patch(notes)
        except _TimeIsUp:
            notes.append(f"git took longer than {_SECONDS:g} s, so not everything is recorded")
            self._deadline = time.monotonic() + _SECONDS / 4
            with suppress(_TimeIsUp):
                facts |= self._head()
        return facts, patch

    def _head(self) -> dict[str, str | None]:
        """Commit and branch alone, which git finds without looking at the user's files."""
        _, branch, _ = self._ask(["symbolic-ref", "--quiet", "--short", "HEAD"])
        _, commit, _ = self._ask(["rev-parse", "--verify", "--quiet", "HEAD"])
        return {"commit": _text(commit).strip() or None, "branch": _text(branch).strip() or None}

    def _patch(self, notes: list[str]) -> bytes:
        status, patch, whole = self._ask(_DIFF, _PATCH_LIMIT)
        if not whole:
            notes.append(
                f"the changes have more than {_PATCH_LIMIT >> 20} MiB: {PATCH} has their beginning"
            )
            return patch[: patch.rfind(b"\n") + 1]
        if status != 0:
            notes.append("git could not print the changes")
            return b""
        return patch

    def _exclude_filters(self) -> bool:
        """Switch off the programs that the repository's own configuration defines for reading
        files. Returns False if that is not possible."""
        if _has_no_filters(self._root / ".git"):
            return True
        status, output, _ = self._ask(
            ["config", "--show-scope", "--name-only", "-z", "--get-regexp", r"^filter\."]
        )
        if status == 1:
            return True  # there are none
        if status != 0:
            return False
        words = _text(output).split("\0")
        for scope, name in zip(words[::2], words[1::2], strict=False):
            if scope in ("system", "global"):
                continue
            if "=" in name:
                return False  # `-c` would read another name
            driver = name.rpartition(".")[0]
            self._without_filters += ["-c", f"{driver}.clean=", "-c", f"{driver}.process="]
            self._without_filters += ["-c", f"{driver}.required=false"]
        return True

    def _ask(self, words: Sequence[str], limit: int = _OUTPUT_LIMIT) -> tuple[int, bytes, bool]:
        """git's exit status, its output, and whether this is the whole output. Raises _TimeIsUp."""
        command = [self._git, *_OPTIONS, *self._without_filters, *words]
        process = subprocess.Popen(
            command, cwd=self._root, env=_environment(os.environ), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        whole = True
        output = bytearray()
        assert process.stdout is not None
        with process.stdout, selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while True:
                left = self._deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    _kill(process)
                    raise _TimeIsUp
                piece = os.read(process.stdout.fileno(), 2**16)
                output += piece
                if not piece:
                    break
                if len(output) > limit:
                    whole = False
                    break
        if not whole:
            _kill(process)
            return -1, bytes(output[:limit]), whole
        try:
            return process.wait(max(0.0, self._deadline - time.monotonic())), bytes(output), whole
        except subprocess.TimeoutExpired:
            _kill(process)
            raise _TimeIsUp from None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and those that it has started. A process that waits for a file server does not
    end at once, so its end is not waited for."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(0.1)


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for git: without variables that name another repository or programs, and with
    those that forbid locks, questions and transfers."""
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith("GIT_") or name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM")
    }
    return {
        **kept,
        "LC_ALL": "C",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "none",
    }


def _has_no_filters(folder: Path) -> bool:
    """Whether the configuration of a repository certainly defines no filter, and includes no other
    file. This is much faster than to ask git."""
    if os.path.lexists(folder / "commondir"):
        return False  # its configuration is in another folder
    try:
        text = (folder / "config").read_bytes().lower()
    except OSError:
        return False  # also for a work tree, whose `.git` is a file
    return not any(word in text for word in (b"filter", b"include", b"worktreeconfig"))


def _read_status(
    output: bytes, root: Path, results: Path
) -> tuple[str | None, str | None, int, list[str]]:
    """Commit, branch, the number of changed files, and the names of untracked files and folders,
    from the output of `git status`. Files of `results` are left out."""
    head: dict[str, str] = {}
    changed, untracked = 0, []
    for record in _text(output).split("\0"):
        if record.startswith("# "):
            name, _, value = record[2:].partition(" ")
            head[name] = value
        if record.startswith(("1 ", "2 ", "u ")):
            changed += 1
        if record.startswith("? ") and not (root / record[2:]).is_relative_to(results):
            untracked.append(record[2:])
    commit, branch = head.get("branch.oid"), head.get("branch.head")
    return (
        None if commit == "(initial)" else commit,
        None if branch == "(detached)" else branch,
        changed,
        untracked,
    )


def _text(output: bytes) -> str:
    return output.decode(errors="replace")
