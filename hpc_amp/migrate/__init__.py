"""`hpc-amp migrate`: finds apex.amp, old torch.cuda.amp and manual fp16, and replaces old names.

rules.py              the rules: what is found, why, and what to write instead
moves.py              the old names and their new names
arguments.py          how the arguments of a call change
script.py, names.py   a script as a syntax tree, and the meaning of the names in it
program.py, paths.py  the meaning of its variables, and the order in which its calls can run
uses.py, exchange.py  replace old names, if the meaning is certain
rules_*.py            the other rules, which only report
finding.py, edits.py  findings, and the changes that belong to them
scan.py               applies all rules to one script
files.py, source.py, notebook.py  files, folders and notebooks
document.py           generates the table of rules in docs/migrate.md

Only files.py, source.py, notebook.py and rules.py can be imported without libcst.
"""
