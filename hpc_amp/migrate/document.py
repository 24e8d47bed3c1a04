"""Generates the table of rules in `docs/migrate.md`.

python -m hpc_amp.migrate.document            # writes it
python -m hpc_amp.migrate.document --check    # exits with 1 if it is out of date
"""

from __future__ import annotations

import re
import sys

from hpc_amp.documents import DOCS, with_part, write_or_check
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
    return with_part(document, BEGIN, END, table())


def main(arguments: list[str]) -> int:
    """Write docs/migrate.md, or with `--check` compare it. Returns the exit status."""
    path = DOCS / "migrate.md"
    new = with_table(path.read_text())
    return write_or_check(path, new, arguments, "hpc_amp.migrate.document")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
