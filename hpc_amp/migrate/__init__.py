"""Finds apex.amp, old torch.cuda.amp and hand-made fp16 in scripts, and changes what is mechanical.

rules.py             what is found, why, and what to write instead
moves.py             what has a new name; arguments.py: how its calls change
script.py, names.py  a script as a tree, and what the names in it stand for
program.py, paths.py what its variables are, and the order in which calls can run
uses.py, exchange.py old names to new ones, where that is certain
rules_*.py           the other rules, which only report
finding.py, edits.py findings, and making the changes that belong to them
scan.py              all rules on one script
files.py, source.py, notebook.py  files, folders and notebooks
document.py          the table of rules in docs/migrate.md

Only files.py, source.py, notebook.py and rules.py can be imported without libcst.
"""
