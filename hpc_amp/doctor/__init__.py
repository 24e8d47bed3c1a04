"""`hpc-amp doctor`: checks that are made before a job is submitted.

The job's preflight (`hpc_amp.preflight`) makes the other checks, on the compute nodes.
"""
