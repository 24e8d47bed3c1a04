#!/bin/bash -l
#PBS -N golden
#PBS -l select=1:ncpus=8:mpiprocs=1:ngpus=1:mem=65536mb:system=polaris
#PBS -l place=scatter
#PBS -l walltime=02:00:00
#PBS -q gpu
#PBS -A 'my project'
#PBS -j oe
#PBS -k doe
#PBS -o /projects/me/runs/golden/20261127-223455-kqzf/logs/job.log
#PBS -r y
#PBS -W umask=022
#PBS -l filesystems=home:eagle
#PBS -M me@example.org
#
# golden: written by hpc-amp 0.0.0. You can edit a copy and submit it yourself.
# The code that all runs share (attempts, restarts, checks) is in src/hpc_amp/host.
# shellcheck disable=SC1091,SC2016,SC2034,SC2154,SC2317 # for the files that are sourced

run_dir=/projects/me/runs/golden/20261127-223455-kqzf
declare -A job=( # times in seconds
  [name]=golden [scheduler]=pbs [launcher]=single [container]=apptainer [program]=own
  [nodes]=1 [ranks_per_node]=1 [cpus_per_rank]=8 [step_cpus]=8
  [walltime]=7200 [limited]=yes [stop_margin]=120 [grace]=10 [launch_timeout]=600 [ask_grace]=yes
  [max_restarts]=10 [retries]=1 [preflight]=yes [mpi]=no
  [python]=python3 [binaries]=apptainer [address]='{host}-ib0'
  [forward_TERM]=TERM [forward_INT]=TERM
)
[ ! -d "$run_dir" ] || [ -d "$run_dir/src" ] || echo "hpc-amp: $run_dir/src leads to no folder on $HOSTNAME: hpc-amp resume --here makes it anew" >&2
[ -d "$run_dir" ] || echo "hpc-amp: there is no run directory $run_dir on $HOSTNAME: hpc-amp submit makes it, and so does hpc-amp render --create" >&2
source "$run_dir/src/hpc_amp/host/begin.sh" || exit 2

# Network between the nodes.
# slingshot: HPE Slingshot 11, for NCCL and libfabric
# From the user guides of ALCF, OLCF, NERSC and CSCS, where they agree.
# If jobs hang, try launch.fabric=slingshot-no-eager; for the full speed, with the site's plugin mounted, launch.fabric=slingshot-ofi.
export NCCL_CROSS_NIC=1
export NCCL_NET_GDR_LEVEL=PHB
export FI_CXI_DISABLE_HOST_REGISTER=1
export FI_MR_CACHE_MONITOR=userfaultfd
export FI_CXI_DEFAULT_CQ_SIZE=131072
export FI_CXI_RX_MATCH_MODE=hybrid
export MPICH_GPU_SUPPORT_ENABLED=0

# Settings of the site.
export NCCL_SOCKET_IFNAME=hsn0,hsn1

setup_begins job.setup "$LINENO"
module load apptainer
setup_ends

image='/projects/images/pytorch 25.sif'
container_options=(
  --nv
  -B /scratch
  -B /projects/data:/data:ro
  -B /projects/me
  --pwd /projects/me/runs/golden/20261127-223455-kqzf
  --cleanenv
)
bind_sources=(/scratch /projects/data /projects/me)

# Runs a command once on each node, before any rank starts.
on_each_node() {
  timeout --kill-after=10 "${job[launch_timeout]}" \
    "$@"
}

# Starts the ranks. For a check, the arguments are a command that limits its time.
launch() {
  exec "$@" "${container[@]}" "$python" "${program[@]}"
}

source "$run_dir/src/hpc_amp/host/run.sh"
