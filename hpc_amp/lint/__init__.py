"""`hpc-amp lint`: checks launch scripts, both generated and written by hand.

script.py             reads a file; the scheduler's `Grammar` (hpc_amp.schedulers.grammar) reads the
                      directives in it
shell.py, job.py      read the body: commands, variables, srun and mpirun
starts.py             finds programs that run on the first node only
rules_*.py            the rules, which add findings to a report
findings.py           the findings, and the list of all rules
header.py, linter.py  apply the rules about the header, and all rules
"""
