# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# PBS Pro and OpenPBS.

scheduler_begins() {
  [ -n "${PBS_JOBID:-}" ] || fail "this script runs under PBS: qsub $run_dir/launch.sh"
  job_id=$PBS_JOBID
}

# job_state JOB_ID HOST: print running or ended; nothing if PBS does not answer.
job_state() {
  local said
  said=$(timeout 60 qstat -f "$1" 2>&1) || true
  case $said in
    *"job_state = "[RSUB]*) echo running ;;
    *"job_state = E"*) ;; # its script may still run
    # A job in any other state waits to be started again.
    *"job_state = "* | *"Unknown Job Id"* | *"has finished"*) echo ended ;;
  esac
}

# gone JOB_ID: whether this job is certainly not in the queue.
gone() {
  case $(timeout 60 qstat -f "$1" 2>&1) in
    *"job_state = F"* | *"Unknown Job Id"* | *"has finished"*) ;;
    *) return 1 ;;
  esac
}

# may_start_again: see ending.sh.
may_start_again() {
  return 0 # after `qrerun`, a preemption or the failure of a node
}

# read_allocation: set `hosts`, `deadline` and `port_seed` for this job.
read_allocation() {
  # The node file has a line for each process of a chunk.
  hosts=$(awk 'NF && !seen[$1]++ { print $1 }' "${PBS_NODEFILE:-/nonexistent}") || fail "no node file at ${PBS_NODEFILE:-PBS_NODEFILE}"
  # The actual time limit: qsub's command line may have changed it.
  facts=$(timeout 20 qstat -f "$PBS_JOBID" 2>/dev/null) || facts=
  limit=$(sed -nE 's/^ *Resource_List\.walltime = ([0-9:]+)$/\1/p' <<<"$facts")
  set_deadline "$(sed -nE 's/^ *stime = (.+)$/\1/p' <<<"$facts")"
  port_seed=$((${PBS_JOBID%%[!0-9]*} + ${PBS_ARRAY_INDEX:-0})) # the tasks of an array have the same job number
}

# use_first_nodes N: mpirun reads the node file too.
use_first_nodes() { use_first_lines "$1" PBS_NODEFILE; }

# own_jobs: print the ids of this run's jobs that are in the queue and wait for no other job. Fails if the
# queue does not answer.
own_jobs() {
  local said
  said=$(timeout 60 qstat -f 2>&1) || return 1
  # A line that begins with a tab continues a value. The paths of log and script show the job's run.
  folder=$run_dir/ awk '
    /^Job Id:/ { look(); id = $3; text = state = ""; next }
    $1 == "job_state" { state = $3 }
    { text = text ($0 ~ /^\t/ ? substr($0, 2) : "\n" $0) }
    END { look() }
    function look() {
      if (state ~ /[QHWTR]/ && text !~ /\n *depend = .*after/ && index(text, ENVIRON["folder"])) print id
    }' <<<"$said"
}

next_job_id='/^[0-9]+\.[^ ]+$/p'
# shellcheck source=links.sh
source "$run_dir/src/hpc_amp/host/links.sh"
