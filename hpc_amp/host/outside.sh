# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# outside_settings: what the script has set for the ranks, which the check inside compares with what the
# image makes of it. Nothing that may hold a password: a difference is shown in the log.
outside_settings() {
  env | grep -E '^(NCCL|GLOO|FI|UCX|OMPI_MCA|PMIX_MCA|MPICH|TORCH|TORCHINDUCTOR|TRITON|CUDA|OMP|MKL)_[A-Za-z0-9_]*='
}
