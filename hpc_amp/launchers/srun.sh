# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Slurm's srun.

host_mpi() { srun --version; }
