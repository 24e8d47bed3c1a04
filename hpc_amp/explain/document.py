"""The table of all known failures in `docs/explain.md`, made from the entries.

python -m hpc_amp.explain.document            # writes it
python -m hpc_amp.explain.document --check    # exits 1 where it is out of date
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
    """A cause or a fix where nothing was captured: `{path}` is shown as PATH."""
    shown = re.sub(r"\{(\w+)\}", lambda found: found[1].upper(), text)
    return shown.replace("{{", "{").replace("}}", "}")


def table() -> str:
    """The known failures in sections, as Markdown."""
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
    """A document with the part between its marks replaced. Raises ValueError without marks."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"it needs the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def main(arguments: list[str]) -> int:
    """Write the document of this checkout, or check it."""
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
