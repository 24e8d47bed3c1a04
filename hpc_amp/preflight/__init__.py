"""Checks on the nodes of a job, made before its ranks start.

`node_checks`, `network_checks` and `gpu_checks` check one node. `meeting` collects the results of
all nodes and compares them. `mpi` checks that the MPI of the host and of the image work together.

This package uses only the standard library, because importing torch takes seconds.
`hpc_amp.distributed.exec` runs it instead of the job's program.
"""
