# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# outside_settings: print the variables that the script has set for the ranks. The check in the container
# compares them with the values there, and differences are written to the log. Only variables that cannot
# contain a password are printed.
outside_settings() {
  env | grep -E '^(NCCL|GLOO|FI|UCX|OMPI_MCA|PMIX_MCA|MPICH|TORCH|TORCHINDUCTOR|TRITON|CUDA|OMP|MKL)_[A-Za-z0-9_]*='
}
