# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Functions for scripts that are not batch scripts: those of a session (hpc-amp shell), and the Python of
# an executor.

# fail MESSAGE: exit because the program cannot start.
fail() {
  echo "hpc-amp: $1" >&2
  exit 2
}

# setup_failed MESSAGE STATUS: exit because a line of `setup` has ended this script.
setup_failed() {
  echo "hpc-amp: $1" >&2
  [ "$2" -ne 0 ] || exit 2
  exit "$2"
}

# enter: set the environment of ranks, and the array `container` for starting commands in the container.
enter() {
  set -u
  export PYTHONNOUSERSITE=1 PYTHONUNBUFFERED=1
  export OMP_NUM_THREADS=${job[cpus_per_rank]}
  # shellcheck source=container.sh
  source "$run_dir/src/hpc_amp/host/container.sh"
}

# be_one_process: set the variables of a session, which is a world of one rank.
be_one_process() {
  local master_addr=127.0.0.1 port_seed=$$ job_id=
  export HOSTNAME # as in a batch job
  # These may come from a batch script in which this shell was started.
  unset HPC_AMP_WORLD_SIZE HPC_AMP_NNODES HPC_AMP_PPN HPC_AMP_ATTEMPT HPC_AMP_OUTCOME_FILE \
    HPC_AMP_STOP_AT HPC_AMP_END_AT HPC_AMP_GRACE
  [ -z "${job[allocation]:-}" ] || job_id=${!job[allocation]:-}
  if [ -n "$job_id" ]; then
    export HPC_AMP_JOB_ID=$job_id
    master_addr=$HOSTNAME
    [ -z "${job[address]:-}" ] || master_addr=${job[address]/\{host\}/${master_addr%%.*}}
    port_seed=${job_id%%[!0-9]*}
  fi
  export MASTER_ADDR=$master_addr
  # Above the range of ephemeral ports, and different for each job.
  export MASTER_PORT=$((61000 + port_seed * 13 % 4536))
  # Names that no image sets. An image's values of the names above would override these.
  export HPC_AMP_MASTER_ADDR=$MASTER_ADDR HPC_AMP_MASTER_PORT=$MASTER_PORT
  if [ "${job[ends]:-}" = yes ]; then
    # A training saves and stops before the time limit, as in the batch job.
    HPC_AMP_END_AT=$(($(date +%s) + job[walltime]))
    export HPC_AMP_END_AT HPC_AMP_STOP_AT=$((HPC_AMP_END_AT - job[stop_margin]))
  fi
}

# run_session WORD ...: run a shell or a command in the container, as the only rank.
run_session() {
  local status=0
  be_one_process
  enter
  [ "${job[records_status]:-}" = yes ] || exec "${container[@]}" "$python" "${program[@]}" "$@"
  # Ctrl-C is for the program in the container. This script stays, to record the exit status.
  trap : INT QUIT
  running=yes
  "${container[@]}" "$python" "${program[@]}" "$@" || status=$?
  running=no
  exit "$status"
}
