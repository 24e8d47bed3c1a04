"""Find the files that `hpc-amp migrate` reads, scan them, and write the changes."""

from __future__ import annotations

import difflib
import importlib.util
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hpc_amp.errors import UsageError
from hpc_amp.jobs.places import is_campaign, is_run
from hpc_amp.migrate.notebook import read_notebook
from hpc_amp.migrate.source import Source, read

if TYPE_CHECKING:
    from hpc_amp.migrate.finding import MigrationFinding

Target = Literal["drop-in", "native"]
_SUFFIXES = (".py", ".ipynb")


@dataclass(frozen=True)
class ScanOptions:
    """The options of a scan.

    `target` is what replaces apex.amp, `torch` the oldest version to support, and `ignored` the
    rules whose findings are not reported.
    """

    target: Target = "drop-in"
    torch: tuple[int, int] = (2, 4)
    ignored: Collection[str] = ()


@dataclass(frozen=True)
class Scanned:
    """The findings in a file.

    `new` is its text with all mechanical changes. `source` is None for a notebook, which is never
    changed, and `refused` has messages about its cells that are not valid Python.
    """

    name: str
    findings: tuple[MigrationFinding, ...]
    source: Source | None = None
    new: str = ""
    refused: tuple[str, ...] = ()

    @property
    def left(self) -> list[MigrationFinding]:
        """The findings that `write` does not change."""
        return [finding for finding in self.findings if not finding.mechanical]

    @property
    def notes(self) -> list[MigrationFinding]:
        """The findings that `write` changes and that need a check by a person."""
        return [finding for finding in self.findings if finding.mechanical and finding.note]

    def diff(self) -> str:
        """Return the changes as a unified diff."""
        if self.source is None:
            return ""
        old, new = (text.splitlines(keepends=True) for text in (self.source.text, self.new))
        name = self.name.lstrip("/")
        lines = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in lines
        )

    @property
    def to_do(self) -> list[MigrationFinding]:
        """The findings that are left for a person: not written, or to be checked afterwards."""
        return [finding for finding in self.findings if not finding.written or finding.note]

    def write(self) -> Scanned:
        """Write the changes, and return the findings with these marked as written. Raises
        UsageError if the file cannot be written."""
        if self.source is None or self.new == self.source.text:
            return self
        self.source.write(self.new)
        findings = (replace(finding, written=finding.mechanical) for finding in self.findings)
        return replace(self, findings=tuple(findings))


def require_libcst() -> None:
    """Raise UsageError if libcst is not installed."""
    if importlib.util.find_spec("libcst") is None:
        raise UsageError("libcst is not installed", hint="pip install 'hpc-amp[migrate]'")


def python_files(paths: Sequence[Path], refused: Callable[[str], None]) -> list[Path]:
    """Return the files in `paths`, and the Python files and notebooks in the folders in `paths`.

    Hidden folders, virtual environments and the folders of runs and campaigns, which have copies of
    the code, are skipped, and each file is returned once. `refused` is called with a message for
    each folder that cannot be read. Raises UsageError if a path does not exist.
    """
    return list(dict.fromkeys(_files(paths, refused)))


def _files(paths: Sequence[Path], refused: Callable[[str], None]) -> Iterator[Path]:
    def unreadable(error: OSError) -> None:
        refused(f"{error.filename} cannot be read: {error.strerror}")

    for path in paths:
        if not path.is_dir():
            if not path.exists():
                raise UsageError(f"{path} does not exist")
            yield path
            continue
        for folder, folders, files in os.walk(path, onerror=unreadable):
            folders[:] = sorted(
                name
                for name in folders
                if not name.startswith(".")
                and name not in ("__pycache__", "site-packages")
                and not Path(folder, name, "pyvenv.cfg").exists()
                and not is_run(Path(folder, name))
                and not is_campaign(Path(folder, name))
            )
            for name in sorted(files):
                file = Path(folder, name)
                # Skip pipes and sockets: reading them may block forever.
                if name.endswith(_SUFFIXES) and (file.is_file() or not file.exists()):
                    yield file


def scan_file(path: Path, options: ScanOptions) -> Scanned:
    """Scan one file. Raises UsageError if it cannot be read or is not valid Python."""
    try:
        if path.suffix == ".ipynb":
            return _in_notebook(path, options)
        source = read(path)
        findings, new = _scan(source.text, path, options)
    except RecursionError:
        raise UsageError(f"{path} contains an expression that is nested too deeply") from None
    return Scanned(str(path), findings, source, new)


def _scan(text: str, path: Path, options: ScanOptions) -> tuple[tuple[MigrationFinding, ...], str]:
    import libcst

    from hpc_amp.migrate.scan import scan

    try:
        findings, new = scan(text, str(path), options.target, options.torch, options.ignored)
    except libcst.ParserSyntaxError as error:
        where = f"{path}:{error.raw_line}:{error.raw_column + 1}"
        raise UsageError(f"{where}: libcst cannot parse this") from None
    return tuple(findings), new


def _in_notebook(path: Path, options: ScanOptions) -> Scanned:
    notebook = read_notebook(path)
    findings, _ = _scan(notebook.text, path, options)
    placed = []
    for finding in findings:
        cell, line, column = notebook.place(finding.line, finding.column or 1)
        placed.append(replace(finding, cell=cell, line=line, column=column, edits=()))
    return Scanned(str(path), tuple(placed), refused=notebook.refused)
