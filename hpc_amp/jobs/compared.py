"""Runs side by side: what differs in their settings and results."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_amp.jobs import rundir
from hpc_amp.jobs.git import CodeState, read_code_state
from hpc_amp.jobs.status import run_statuses
from hpc_amp.jobs.summary import read_summary

_ENVIRONMENT = ("hpc_amp", "site", "scheduler", "launcher", "python")
_RESULTS = ("samples_per_second", "steps", "seconds", "skipped_steps", "loss_scale")
_BLOCK = 2**20
"""Bytes of a file that are read at a time."""


@dataclass(frozen=True, slots=True)
class _Secret:
    """A value that may be a password. It is compared, and never shown."""

    value: Any


@dataclass(frozen=True, slots=True)
class Row:
    """A key, and its value in each run; None if a run does not have the key."""

    key: str
    values: tuple[Any, ...]

    @property
    def differs(self) -> bool:
        """Whether the runs do not all have the same value."""
        return any(value != self.values[0] for value in self.values)


@dataclass(frozen=True, slots=True)
class Compared:
    """`settings`, `environment` and `code` have the keys that differ; `results` has all."""

    run_dirs: tuple[Path, ...]
    settings: tuple[Row, ...]
    environment: tuple[Row, ...]
    code: tuple[Row, ...]
    results: tuple[Row, ...]

    def to_plain(self) -> dict[str, Any]:
        """As a JSON object."""
        parts = {
            "settings": self.settings, "environment": self.environment, "code": self.code,
            "results": self.results,
        }  # fmt: skip
        rows = {
            name: {row.key: [_plain(value) for value in row.values] for row in part}
            for name, part in parts.items()
        }
        return {"runs": [str(run_dir) for run_dir in self.run_dirs], **rows}


def compare_runs(run_dirs: Sequence[Path]) -> Compared:
    """Compare runs. Raises UsageError if one has no record of its job."""
    resolved = [rundir.read_resolved(run_dir) for run_dir in run_dirs]
    settings = [dict(_flat(one["job"])) for one in resolved]
    facts = [{name: one.get(name) for name in _ENVIRONMENT} for one in resolved]
    results = []
    for status in run_statuses(run_dirs):
        summary = read_summary(Path(status.run_dir))
        kept = {name: summary[name] for name in _RESULTS if summary.get(name) is not None}
        results.append({**(summary.get("metrics") or {}), **kept, "state": status.state})
    return Compared(
        tuple(run_dirs),
        tuple(row for row in _rows(settings) if row.differs),
        tuple(row for row in _rows(facts) if row.differs),
        tuple(row for row in _rows([_code(run_dir) for run_dir in run_dirs]) if row.differs),
        tuple(_rows(results)),
    )


def _code(run_dir: Path) -> dict[str, Any]:
    """The state of a run's code: in git, and the files of its copy."""
    state = read_code_state(run_dir)
    facts: dict[str, Any] = {}
    if state is not None:
        facts = {"commit": state.commit, "branch": state.branch, "changes": _changes(state)}
    for path in sorted((run_dir / "code").rglob("*")):
        name = path.relative_to(run_dir)
        content = _content(path) if "__pycache__" not in name.parts else None
        if content is not None:
            facts[str(name)] = content
    return facts


def _content(path: Path) -> str | None:
    """A hash of a file, or where a link leads to: that may be a data set. None for all else."""
    try:
        if path.is_symlink():
            return f"link to {os.readlink(path)}"
        if not path.is_file():
            return None
        found = hashlib.sha256()
        with path.open("rb") as source:
            while block := source.read(_BLOCK):
                found.update(block)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return found.hexdigest()[:12]


def _changes(state: CodeState) -> str:
    if state.dirty is None:
        return "unknown"
    if not state.dirty:
        return "none"
    return "git.patch" if state.changes is None else f"git.patch {state.changes}"


def _rows(columns: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    for key in dict.fromkeys(key for column in columns for key in column):
        yield Row(key, tuple(column.get(key) for column in columns))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The keys of nested mappings, joined by dots."""
    for name, value in values.items():
        if prefix == "container.env.":
            yield f"{prefix}{name}", _Secret(value)
        elif isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def as_text(compared: Compared) -> str:
    """The comparison for people: a column for each run."""
    titles = ["", *(f"{run_dir.parent.name} {run_dir.name}" for run_dir in compared.run_dirs)]
    lines = [titles]
    for name, rows in (
        ("settings that differ", compared.settings),
        ("environment that differs", compared.environment),
        ("code that differs", compared.code),
        ("results", compared.results),
    ):
        lines.append([f"{name}:" if rows else f"{name}: none"])
        lines += [[f"  {row.key}", *map(_shown, row.values)] for row in rows]
    columns = [[line[at] for line in lines if at < len(line) > 1] for at in range(len(titles))]
    widths = [max(map(len, column)) for column in columns]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=False)).rstrip()
        for line in lines
    )


def _plain(value: Any) -> Any:
    if isinstance(value, _Secret):
        return "(not shown)"
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _shown(value: Any) -> str:
    if isinstance(value, _Secret):
        return "(not shown)"
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
