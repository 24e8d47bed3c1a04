"""`hpc-amp site draft --on-node`: a small job that looks at a node."""
