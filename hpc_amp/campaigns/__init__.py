"""What all ways to make many runs of one job have in common. Scaling studies (`hpc_amp.study`),
sweeps (`hpc_amp.sweep`) and benchmarks (`hpc_amp.bench`) import this, and none of them another."""
