# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Cobalt.

scheduler_begins() {
  # Only two of Cobalt's variables always reach the script.
  [ -n "${COBALT_JOBID:-}" ] || fail "this script runs under Cobalt: qsub $run_dir/launch.sh"
  job_id=$COBALT_JOBID
}

# job_state JOB_ID HOST: print running or ended; nothing if Cobalt does not answer.
job_state() {
  local said
  # For an unknown job, qstat prints nothing and exits with 1. The status of `timeout` differs.
  said=$(timeout 60 qstat --header JobID:State "$1" 2>&1) || [ "$?$said" = 1 ] || return 0
  case $(awk -v id="$1" '$1 == id { print $2 }' <<<"$said") in
    starting | running | preempting) echo running ;;
    exiting | killing) ;; # its script may still run
    *) echo ended ;;
  esac
}

# gone JOB_ID: whether this job is certainly not in the queue: qstat prints nothing and exits with 1.
gone() {
  local said status=0
  said=$(timeout 60 qstat --header JobID:State "$1" 2>&1) || status=$?
  [ "$status" -eq 1 ] && [ -z "$said" ]
}

# read_allocation: set `hosts`, `deadline` and `port_seed` for this job.
read_allocation() {
  hosts=$(awk 'NF && !seen[$1]++ { print $1 }' "${COBALT_NODEFILE:-/nonexistent}") || fail "no node file at ${COBALT_NODEFILE:-COBALT_NODEFILE}"
  # The actual time limit, if this node can query it: qsub's command line may have changed it.
  limit=$(timeout 20 qstat --header WallTime "$COBALT_JOBID" 2>/dev/null | sed -nE 's/^ *([0-9]+:[0-9]{2}:[0-9]{2}) *$/\1/p') || limit=
  set_deadline "@$job_began" # Cobalt does not show when it started the job
  port_seed=$COBALT_JOBID
}

# use_first_nodes N: mpiexec reads the node file too.
use_first_nodes() { use_first_lines "$1" COBALT_NODEFILE; }

# own_jobs: print the ids of this run's jobs that are in the queue and wait for no other job. Fails if the
# queue does not answer.
own_jobs() {
  local said
  said=$(timeout 60 qstat -u "${USER:-*}" --header JobID:State:Command 2>&1) || return 1
  script=$run_dir/launch.sh awk '$2 !~ /^dep_/ && $3 == ENVIRON["script"] { print $1 }' <<<"$said"
}

next_job_id='s/^([0-9]+)( .*)?$/\1/p'
# shellcheck source=links.sh
source "$run_dir/src/hpc_amp/host/links.sh"
