"""The files of a report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpc_amp.campaigns.words import joined
from hpc_amp.errors import UsageError
from hpc_amp.files import write_atomically


@dataclass(frozen=True, slots=True)
class Written:
    """The files of a report that were written. `remark` says what was left out, and why."""

    folder: Path
    names: tuple[str, ...]
    remark: str | None

    def describe(self) -> str:
        """The names and the folder of the files, as text."""
        lines = [f"wrote {joined(list(self.names))} to {self.folder}"]
        return "\n".join(["", *lines, *([self.remark] if self.remark else [])])


def why_no_pictures() -> str | None:
    """Why pictures cannot be drawn, as a sentence; None if they can."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        if error.name == "matplotlib":
            return "No pictures: matplotlib is not installed (pip install 'hpc-amp[report]')."
        return f"No pictures: matplotlib cannot be imported ({error})."
    return None


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically, and make its folder. Raises UsageError if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}",
            hint="choose another folder (for a report: --out)",
        ) from None
