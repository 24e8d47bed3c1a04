"""The draft of a site file: keys with where each value was read, as text with comments.

The rooms of schedulers and container runtimes add to a draft, so it is below them.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass, field
from typing import Any

from hpc_amp.config.write import to_text

_WIDTH = 100
# The order of the keys in the file. Others follow in the order in which they were added.
_ORDER = (
    *("description", "scheduler", "hosts", "launcher", "launcher_args", "srun_mpi", "runtime"),
    *("gpu_request", "gpu_type", "gpu_order", "chunk", "options", "directives"),
    *("skip_directives", "setup", "fabric", "address", "bind", "env", "container_args"),
)
DEFAULTS = "defaults.job."
"""The beginning of keys that are defaults of a job."""


@dataclass
class Entry:
    """A key of the site file."""

    key: str
    """Such as `gpu_request`, or `defaults.job.queue`."""
    value: Any
    source: str
    """Where the value was read, or what to ask. It becomes the comment above the line."""
    is_open: bool = False
    """Whether somebody has to decide. The line is then a comment too."""
    line: int = 0
    """The number of its line in the text, from 1 on."""


@dataclass
class SiteDraft:
    """What is known about a cluster, for its site file."""

    name: str = ""
    """The name that the cluster has in its scheduler. It may contain any characters."""
    entries: dict[str, Entry] = field(default_factory=dict)
    facts: list[str] = field(default_factory=list)
    """What the commands report and no key contains: queues with their limits, kinds of nodes."""
    unread: list[str] = field(default_factory=list)
    """The commands that gave no answer, with the reason."""

    def add(self, key: str, value: Any, source: str) -> None:
        """Set a key. `source` says where the value was read. A value that was added before is
        replaced."""
        self.entries[key] = Entry(key, value, source)

    def ask(self, key: str, example: Any, question: str) -> None:
        """Add a key as a comment, with what to ask. A value that was added before is kept."""
        self.entries.setdefault(key, Entry(key, example, question, is_open=True))

    def value(self, key: str) -> Any:
        """The value of a key, or None if it has none."""
        entry = self.entries.get(key)
        return None if entry is None or entry.is_open else entry.value

    def text(self, heading: str) -> str:
        """The text of the site file, beginning with the comment `heading`. The lines of the
        entries are recorded in them."""
        lines = _comment(heading)
        for title, facts in (
            ("What the commands of this cluster report:", self.facts),
            ("Commands without an answer:", self.unread),
        ):
            if facts:
                lines += ["#", f"# {title}"]
                for fact in facts:
                    lines += _comment(f"- {fact}", "#  ", "  ")
        top = [one for one in self.entries.values() if not one.key.startswith(DEFAULTS)]
        for entry in sorted(top, key=_rank):
            lines += ["", *_comment(entry.source, "#?" if entry.is_open else "#")]
            entry.line = len(lines) + 1
            lines += _lines(entry, entry.key, "")
        defaults = [one for one in self.entries.values() if one.key.startswith(DEFAULTS)]
        if defaults:
            # If all are open, this is an empty section, so that the `#` of any key can be removed.
            lines += ["", "# Defaults for the keys of job files."]
            lines += ["defaults:", "  job:"]
        for entry in defaults:
            indent = "    "
            mark = "#?" if entry.is_open else "#"
            lines += [f"{indent}{line}" for line in _comment(entry.source, mark)]
            entry.line = len(lines) + 1
            lines += _lines(entry, entry.key.removeprefix(DEFAULTS), indent)
        return "".join(f"{line.rstrip()}\n" for line in lines)


def _rank(entry: Entry) -> int:
    return _ORDER.index(entry.key) if entry.key in _ORDER else len(_ORDER)


def _lines(entry: Entry, name: str, indent: str) -> list[str]:
    """The lines of a key and its value, indented. They are comments if the entry is open."""
    text = to_text({name: entry.value}, math.inf, allow_unicode=False).rstrip("\n")
    mark = "#" if entry.is_open else ""
    return [f"{indent}{mark}{line}" for line in text.split("\n")]


def _comment(text: str, mark: str = "#", indent: str = "") -> list[str]:
    """Text as lines of a comment. Each line of it begins a new one. `indent` is put before the
    further lines of a line that is too long."""
    lines = []
    for paragraph in text.split("\n"):
        wrapped = textwrap.wrap(
            printable(paragraph),
            _WIDTH - 6,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines += [f"{mark} {line}" for line in wrapped or [""]]
    return lines


def printable(text: str) -> str:
    """Text of a command in one line, without control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
