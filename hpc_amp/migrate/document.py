"""Generates the table of rules in `docs/migrate.md`.

python -m hpc_amp.migrate.document            # writes it
python -m hpc_amp.migrate.document --check    # exits with 1 if it is out of date
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from hpc_amp.migrate.rules import RULES, Rule

BEGIN = "<!-- rules: made by `python -m hpc_amp.migrate.document` -->"
END = "<!-- end of rules -->"


def table() -> str:
    """Return the rules as Markdown tables, one for each group."""
    groups: dict[str, list[str]] = {}
    for name, rule in RULES.items():
        row = f"| `{name}` | {_cell(rule.message)} | {_instead(rule)} |"
        groups.setdefault(rule.group, []).append(row)
    head = "| rule | what and why | instead |\n|---|---|---|\n"
    return "\n\n".join(f"### {group}\n\n{head}" + "\n".join(groups[group]) for group in groups)


def _instead(rule: Rule) -> str:
    if not rule.mechanical:
        return _cell(rule.instead)
    note = f"; then check: {_cell(rule.note)}" if rule.note else ""
    return f"**`--write`**, if the change is certain{note}"


def _cell(text: str) -> str:
    """A text of a rule for the table: `{scaler}` becomes SCALER."""
    named = re.sub(r"\{(\w+)\}", lambda found: found[1].upper(), text)
    return named.replace("|", "\\|").replace("<", "&lt;")


def with_table(document: str) -> str:
    """Replace the table between the marks in a document. Raises ValueError without marks."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"it needs the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def main(arguments: list[str]) -> int:
    """Write docs/migrate.md, or with `--check` compare it. Returns the exit status."""
    path = Path(__file__).resolve().parents[2] / "docs" / "migrate.md"
    old = path.read_text()
    new = with_table(old)
    if old == new:
        return 0
    if "--check" in arguments:
        print(f"{path} is out of date: python -m hpc_amp.migrate.document", file=sys.stderr)
        return 1
    path.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
