"""Generates the tables of known failures in `docs/explain.md`.

python -m hpc_amp.explain.document            # writes them
python -m hpc_amp.explain.document --check    # exits with 1 if they are out of date
"""

from __future__ import annotations

import re
import sys

from hpc_amp.documents import DOCS, with_part, write_or_check
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
    return with_part(document, BEGIN, END, table())


def main(arguments: list[str]) -> int:
    """Write docs/explain.md, or with `--check` compare it. Returns the exit status."""
    path = DOCS / "explain.md"
    new = with_table(path.read_text())
    return write_or_check(path, new, arguments, "hpc_amp.explain.document")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
