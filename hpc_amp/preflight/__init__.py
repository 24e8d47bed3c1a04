"""What is checked on the nodes of a job before its ranks start: each node by itself
(`node_checks`, `network_checks`, `gpu_checks`), all nodes together (`meeting`), and MPI between
host and image (`mpi`). Job side, with the standard library only: importing torch takes seconds.

`hpc_amp.distributed.exec` starts these checks in the place of the job's own program.
"""
