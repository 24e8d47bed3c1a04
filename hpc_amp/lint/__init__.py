"""Checks launch scripts by the schedulers' real rules, ours and hand-written ones.

script.py, directives.py   what is in the file, and what each scheduler reads of it
options.py                 the words of directives as options with values
shell.py, job.py           the body: commands, variables, srun and mpirun
starts.py                  what the script runs by itself, and whether it starts work elsewhere
rules_*.py                 the rules, which tell a report what they find
findings.py                findings, and the list of all rules
header.py, linter.py       all rules about a header; all rules
"""

from hpc_amp.lint.header import header_errors
from hpc_amp.lint.linter import lint

__all__ = ["header_errors", "lint"]
