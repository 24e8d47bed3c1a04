"""Checks launch scripts by the schedulers' real rules, ours and hand-written ones.

script.py, directives.py   what is in the file, and what each scheduler reads of it
options.py                 the words of directives as options with values
shell.py, job.py           the body: commands, variables, srun and mpirun
rules_*.py                 the rules, which tell a report what they find
findings.py                findings, and the list of all rules
header.py, linter.py       all rules about a header; all rules
"""
