#!/bin/bash -l
#SBATCH --job-name=golden
#SBATCH --chdir=/projects/me/runs/golden/20261127-223455-kqzf
#SBATCH --output=/projects/me/runs/golden/20261127-223455-kqzf/logs/job.log
#SBATCH --open-mode=append
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=a100:4
#SBATCH --mem=65536M
#SBATCH --time=02:00:00
#SBATCH --partition=gpu
#SBATCH --account='my project'
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --qos=premium
#
# golden: written by hpc-amp 0.0.0. You can edit a copy and submit it yourself.
# The code that all runs share (attempts, restarts, checks) is in src/hpc_amp/host.
# shellcheck disable=SC1091,SC2016,SC2034,SC2154,SC2317 # for the files that are sourced

run_dir=/projects/me/runs/golden/20261127-223455-kqzf
declare -A job=( # times in seconds
  [name]=golden [scheduler]=slurm [launcher]=srun [container]=podman [program]=task
  [nodes]=2 [ranks_per_node]=4 [cpus_per_rank]=8 [step_cpus]=8
  [walltime]=7200 [limited]=yes [stop_margin]=120 [grace]=30 [launch_timeout]=600 [ask_grace]=yes
  [max_restarts]=10 [retries]=1 [preflight]=yes [mpi]=no
  [python]=python3 [binaries]='podman-hpc podman' [address]='{host}-ib0'
  [forward_USR1]=USR1 [forward_USR2]=USR2
  [gpu]=yes
)
[ ! -d "$run_dir" ] || [ -d "$run_dir/src" ] || echo "hpc-amp: $run_dir/src leads to no folder on $HOSTNAME: hpc-amp resume --here makes it anew" >&2
[ -d "$run_dir" ] || echo "hpc-amp: there is no run directory $run_dir on $HOSTNAME: hpc-amp submit makes it, and so does hpc-amp render --create" >&2
source "$run_dir/src/hpc_amp/host/begin.sh" || exit 2

# Settings of the site.
export NCCL_SOCKET_IFNAME=hsn0,hsn1

setup_begins job.setup "$LINENO"
module load apptainer
setup_ends

image=nvcr.io/nvidia/pytorch:25.06-py3
container_options=(
  --volume=/scratch:/scratch
  --volume=/projects/data:/data:ro
  --volume=.:.
  --volume=/projects/me:/projects/me
  --workdir=/projects/me/runs/golden/20261127-223455-kqzf
)
bind_sources=(/scratch /projects/data . /projects/me)

# Runs a command once on each node, before any rank starts.
on_each_node() {
  timeout --kill-after=10 "${job[launch_timeout]}" \
    srun --nodelist="$SLURM_JOB_NODELIST" --nodes=2 --ntasks=2 --ntasks-per-node=1 \
    --cpus-per-task=8 --distribution=block:block --mpi=none --kill-on-bad-exit=0 \
    --label "$@"
}

# Starts the ranks. For a check, the arguments are a command that limits its time.
launch() {
  exec "$@" srun --nodelist="$SLURM_JOB_NODELIST" --nodes=2 --ntasks=8 --ntasks-per-node=4 \
    --cpus-per-task=8 --distribution=block:block --mpi=none --kill-on-bad-exit=1 \
    --wait=60 --label "${container[@]}" "$python" "${program[@]}"
}

source "$run_dir/src/hpc_amp/host/run.sh"
