"""The findings of the linter, and the list of its rules."""

from __future__ import annotations

from hpc_amp.finding import FileFinding, Severity

# All rules with their severity. `error`: the script does not do what it says. `warning`: this often
# goes wrong, but it may be intended. The ids do not change; docs/lint.md explains each rule.
RULES: dict[str, Severity] = {
    # The file as a whole
    "byte-order-mark": "error",
    "crlf": "error",
    "missing-shebang": "error",
    # Which lines are directives
    "directive-never-read": "error",
    "directive-misspelt": "error",
    "directive-commented-out": "warning",
    "comment-is-directive": "error",
    # How a directive is split into words
    "unmatched-quote": "error",
    "stray-word": "error",
    "trailing-comment": "error",
    "value-cut": "error",
    "backslash-lost": "error",
    "quotes-kept": "error",
    "quote-takes-the-rest": "error",
    "typographic-character": "error",
    "line-continuation": "error",
    # Options and their values
    "unknown-option": "error",
    "torque-option": "warning",
    "missing-value": "error",
    "short-option-equals": "error",
    "bad-value": "error",
    "variable-in-directive": "error",
    "variable-in-log-path": "warning",
    "tilde-in-path": "error",
    "conflicting-options": "error",
    "submits-nothing": "error",
    "non-ascii": "error",
    "option-twice": "warning",
    "first-resource-wins": "error",
    "attrs-twice": "error",
    "env-not-merged": "error",
    "env-value": "error",
    "hours-not-minutes": "warning",
    # Environment
    "export-comma": "error",
    "export-twice": "error",
    "export-drops-environment": "warning",
    # The body: paths, signals
    "log-directory-too-late": "warning",
    "no-cd": "warning",
    "signal-misses-script": "error",
    "signal-reaches-nobody": "error",
    "signal-kills-script": "error",
    "trap-waits": "warning",
    "array-by-job-id": "error",
    # The body: what is started at all
    "first-node-only": "error",
    "started-once": "warning",
    "background-not-waited": "error",
    # The body: several ranks
    "rank-in-batch-shell": "error",
    "rank-expanded-early": "error",
    "local-rank-argument": "error",
    "gpus-per-task": "warning",
    "missing-cpus-per-task": "warning",
    "tasks-per-node-list": "error",
    "ranks-and-gpus": "warning",
    "ntasks-wins": "warning",
    "torchrun-per-rank": "error",
    "node-file-lines": "error",
    "fixed-port": "warning",
    "hostname-address": "warning",
    "launch-node-address": "warning",
    "node-list-cut": "warning",
    "localhost-on-many-nodes": "error",
    "env-not-sent": "warning",
    "image-per-rank": "warning",
    "scontrol-in-container": "warning",
    "ranks-cut-off": "warning",
    "interface-excluded": "warning",
    "port-per-task": "error",
    "seed-per-task": "warning",
    "first-component-address": "error",
}


class FileFindings:
    """Collects the findings of one file. Equal findings are kept once."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._found: dict[tuple[int, str, str], FileFinding] = {}

    def add(self, rule: str, line: int, message: str, fix: str) -> None:
        """Add a finding of `rule`, a key of RULES, at `line`, which counts from 1."""
        finding = FileFinding(rule, RULES[rule], message, fix=fix, file=self._file, line=line)
        self._found.setdefault((line, rule, message), finding)

    def findings(self) -> list[FileFinding]:
        """Return all findings, sorted by line."""
        return sorted(self._found.values(), key=lambda one: (one.line, one.id, one.what))


def shown(text: str, limit: int = 60) -> str:
    """A piece of a script for a message: one line, printable, at most `limit` characters."""
    clean = "".join(char if char.isprintable() else "?" for char in text.replace("\t", " "))
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"
