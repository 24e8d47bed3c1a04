#!/bin/bash -l
#
# golden: written by hpc-amp 0.0.0. You can edit a copy and submit it yourself.
# The code that all runs share (attempts, restarts, checks) is in src/hpc_amp/host.
# shellcheck disable=SC1091,SC2016,SC2034,SC2154,SC2317 # for the files that are sourced

run_dir=/projects/me/runs/golden/20261127-223455-kqzf
declare -A job=( # times in seconds
  [name]=golden [scheduler]=local [launcher]=processes [container]=apptainer [program]=task
  [nodes]=1 [ranks_per_node]=4 [cpus_per_rank]=8 [step_cpus]=32
  [walltime]=7200 [limited]=no [stop_margin]=120 [grace]=30 [launch_timeout]=600 [ask_grace]=yes
  [max_restarts]=10 [retries]=1 [preflight]=yes [mpi]=no
  [python]=python3 [binaries]=apptainer
  [forward_USR1]=USR1 [forward_USR2]=USR2 [forward_TERM]=TERM [forward_INT]=TERM
)
[ ! -d "$run_dir" ] || [ -d "$run_dir/src" ] || echo "hpc-amp: $run_dir/src leads to no folder on $HOSTNAME: hpc-amp resume --here makes it anew" >&2
[ -d "$run_dir" ] || echo "hpc-amp: there is no run directory $run_dir on $HOSTNAME: hpc-amp submit makes it, and so does hpc-amp render --create" >&2
source "$run_dir/src/hpc_amp/host/begin.sh" || exit 2

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
  -B .
  -B /projects/me
  --pwd /projects/me/runs/golden/20261127-223455-kqzf
)
bind_sources=(/scratch /projects/data . /projects/me)

# Runs a command once on each node, before any rank starts.
on_each_node() {
  timeout --kill-after=10 "${job[launch_timeout]}" \
    "$@"
}

# Starts the ranks. For a check, the arguments are a command that limits its time.
launch() {
  exec "$@" "${container[@]}" "$python" "${program[@]}" --ranks "$HPC_AMP_PPN"
}

source "$run_dir/src/hpc_amp/host/run.sh"
