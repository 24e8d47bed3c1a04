"""Generates the tables of known failures in `docs/explain.md`.

python -m hpc_amp.explain.document            # writes them
python -m hpc_amp.explain.document --check    # exits with 1 if they are out of date
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from hpc_amp.explain.failures import Failure, known_failures
from hpc_amp.schedulers import SCHEDULERS

BEGIN = "<!-- failures: made by `python -m hpc_amp.explain.document` -->"
END = "<!-- end of failures -->"
_TITLES = {
    "container": "Containers: Apptainer, Singularity, enroot",
    "gpu": "GPUs and drivers",
    "hpc_amp": "hpc-amp's own messages",
    "launch": "Launchers and MPI",
    "nccl": "NCCL and the network",
    "process": "Processes that were killed",
    "python": "Python and its packages",
    "rendezvous": "How ranks find each other",
    "shell": "Shell scripts",
    "storage": "File systems",
    "training": "Training",
}


def without_braces(text: str) -> str:
    """Replace the placeholders of a cause or a fix: `{path}` becomes PATH."""
    shown = re.sub(r"\{(\w+)\}", lambda found: found[1].upper(), text)
    return shown.replace("{{", "{").replace("}}", "}")


def table() -> str:
    """Return the known failures as Markdown tables, one for each area."""
    sections: dict[str, list[Failure]] = {}
    for failure in known_failures():
        if failure.level != "noise":
            sections.setdefault(failure.area, []).append(failure)
    parts = []
    for area, failures in sections.items():
        rows = [f"| `{f.id}` | {_cell(f.cause)} | {_cell(f.fix)} |" for f in failures]
        title = _TITLES.get(area, area.capitalize())
        if area in SCHEDULERS:
            title = SCHEDULERS.get(area).title
        head = f"### {title}\n\n| failure | cause | fix |\n|---|---|---|\n"
        parts.append(head + "\n".join(rows))
    return "\n\n".join(parts)


def _cell(text: str) -> str:
    return without_braces(text).replace("|", "\\|").replace("<", "&lt;")


def with_table(document: str) -> str:
    """Replace the tables between the marks in a document. Raises ValueError without marks."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"it needs the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def main(arguments: list[str]) -> int:
    """Write docs/explain.md, or with `--check` compare it. Returns the exit status."""
    path = Path(__file__).resolve().parents[2] / "docs" / "explain.md"
    old = path.read_text()
    new = with_table(old)
    if old == new:
        return 0
    if "--check" in arguments:
        print(f"{path} is out of date: python -m hpc_amp.explain.document", file=sys.stderr)
        return 1
    path.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
