"""Checks launch scripts by the schedulers' real rules, ours and hand-written ones.

script.py             what is in the file; what each scheduler reads of it, its `Grammar` knows
                      (hpc_amp.schedulers.grammar)
shell.py, job.py      the body: commands, variables, srun and mpirun
starts.py             what the script runs by itself, and whether it starts work elsewhere
rules_*.py            the rules, which tell a report what they find
findings.py           findings, and the list of all rules
header.py, linter.py  all rules about a header; all rules
"""
