# shellcheck shell=bash disable=SC2034,SC2153,SC2154 # variables of what sources this
# Grid Engine.

# After an exit status of 99, Grid Engine starts the job again. After 100, it keeps the job in the queue in
# an error state.
reserved_statuses="99 100"

scheduler_begins() {
  [ -n "${SGE_JOB_SPOOL_DIR:-}" ] || fail "this script runs under Grid Engine: qsub $run_dir/launch.sh"
  job_id=$JOB_ID
  [ "${SGE_TASK_ID:-undefined}" = undefined ] || job_id=$JOB_ID.$SGE_TASK_ID
  # The login shell may not have Grid Engine's commands in its PATH.
  command -v qstat >/dev/null || PATH=$PATH:${SGE_BINARY_PATH:-}
}

# job_line JOB_ID: print state, date and time of a job or a task; nothing if it is not in the queue. Fails
# if the queue does not answer.
job_line() {
  local said
  # All users' jobs are listed, because some nodes do not know this user's name.
  said=$(timeout 60 qstat -g d -u '*') || return 1
  # Running jobs have one more column, the queue, before the slots and the task.
  awk -v id="$1" '
    $1 ~ /^[0-9]+$/ {
      task = $8 ~ /@/ ? $10 : $9
      if ((task == "" ? $1 : $1 "." task) == id) print $5, $6, $7
    }' <<<"$said"
}

# job_state JOB_ID HOST: print running or ended; nothing if Grid Engine does not answer.
job_state() {
  local line
  line=$(job_line "$1" 2>/dev/null) || return 0
  case ${line%% *} in
    *d*) ;; # its script may still run
    "" | *q*) echo ended ;; # a job in the queue waits to be started again
    *) echo running ;;
  esac
}

# gone JOB_ID: whether this job is certainly not in the queue, or can never start.
gone() {
  local line
  line=$(job_line "$1" 2>/dev/null) || return 1
  case ${line%% *} in
    "" | *E*) ;;
    *) return 1 ;;
  esac
}

# may_start_again: see ending.sh.
may_start_again() {
  return 0 # after `qmod -rj` or the failure of a node
}

# read_allocation: set `hosts`, `deadline` and `port_seed` for this job.
read_allocation() {
  local line
  # Without a parallel environment there is no host file.
  hosts=$HOSTNAME
  if [ -n "${PE_HOSTFILE:-}" ]; then
    hosts=$(awk 'NF && !seen[$1]++ { print $1 }' "$PE_HOSTFILE") || fail "no host file at $PE_HOSTFILE"
  fi
  # The actual time limit: qsub's command line may have changed it.
  limit=$(timeout 20 qstat -j "$JOB_ID" 2>/dev/null |
    sed -nE 's/^hard resource_list: *(.*,)?h_rt=([0-9:]+)(,.*)?$/\2/p') || limit=
  line=$(job_line "$job_id" 2>/dev/null) || line=
  set_deadline "${line#* }"
  port_seed=${job_id/./} # the tasks of an array have the same job number
}

# use_first_nodes N: mpirun reads the host file too.
use_first_nodes() { use_first_lines "$1" PE_HOSTFILE; }

# own_jobs: print the ids of this run's jobs that are in the queue and wait for no other job. Fails if the
# queue does not answer.
own_jobs() {
  local said numbers
  said=$(timeout 60 qstat -u "${USER:-*}") || return 1
  numbers=$(awk '$1 ~ /^[0-9]+$/ && !seen[$1]++ { printf "%s%s", sep, $1; sep = "," }' <<<"$said")
  [ -n "$numbers" ] || return 0
  # For a job that has ended meanwhile, qstat prints a message and exits with 1. An interactive session of
  # the run has the same working directory, but another script.
  said=$(timeout 60 qstat -j "$numbers" 2>&1) || grep -q '^job_number:\|do not exist' <<<"$said" || return 1
  folder=$run_dir awk '
    /^=+$/ { look() }
    { name = $0; sub(/:.*/, "", name); value = $0; sub(/^[^:]*: */, "", value) }
    name == "job_number" { id = value }
    name == "cwd" { cwd = value }
    name == "script_file" { script = value }
    name == "jid_predecessor_list" { waits = 1 }
    END { look() }
    function look() {
      if (id != "" && !waits && cwd == ENVIRON["folder"] && script ~ /(^|\/)launch\.sh$/) print id
      id = cwd = script = ""; waits = 0
    }' <<<"$said"
}

next_job_id='s/^Your job ([0-9]+) .*/\1/p'
# shellcheck source=links.sh
source "$run_dir/src/hpc_amp/host/links.sh"

# is_refused OUTPUT: whether another try is useless, given the output of qsub. A limit that was reached may
# not be reached later.
is_refused() {
  ! grep -qiE 'jobs? (is|are) allowed|quota' <<<"$1" || return 1
  grep -qiE 'denied|rejected|unknown|no suitable queues|not allowed|invalid|not found' <<<"$1"
}
