# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# PBS Pro and OpenPBS.

scheduler_begins() {
  [ -n "${PBS_JOBID:-}" ] || fail "this script runs under PBS: qsub $run_dir/launch.sh"
  job_id=$PBS_JOBID
}

# job_state JOB_ID HOST: running or ended; nothing where PBS does not say.
job_state() {
  local said
  said=$(timeout 60 qstat -f "$1" 2>&1) || true
  case $said in
    *"job_state = "[RSUB]*) echo running ;;
    *"job_state = E"*) ;; # its script may be at work
    # Also one that waits to be started once more.
    *"job_state = "* | *"Unknown Job Id"* | *"has finished"*) echo ended ;;
  esac
}

# gone JOB_ID: whether PBS says that this job is not in its queue.
gone() {
  case $(timeout 60 qstat -f "$1" 2>&1) in
    *"job_state = F"* | *"Unknown Job Id"* | *"has finished"*) ;;
    *) return 1 ;;
  esac
}

# may_start_again: whether the scheduler, after a SIGTERM, may start this job once more without saying
# so before.
may_start_again() {
  return 0 # after `qrerun`, a preemption or the loss of a node
}

# read_allocation: what the scheduler gave this job: `hosts`, `deadline` and `port_seed`.
read_allocation() {
  # What PBS gave us. A host stands in the node file once for each process of its chunk.
  hosts=$(awk 'NF && !seen[$1]++ { print $1 }' "${PBS_NODEFILE:-/nonexistent}") || fail "no node file at ${PBS_NODEFILE:-PBS_NODEFILE}"
  # The time limit as it really is: qsub's command line may have changed it.
  facts=$(timeout 20 qstat -f "$PBS_JOBID" 2>/dev/null) || facts=
  limit=$(sed -nE 's/^ *Resource_List\.walltime = ([0-9:]+)$/\1/p' <<<"$facts")
  set_deadline "$(sed -nE 's/^ *stime = (.+)$/\1/p' <<<"$facts")"
  port_seed=$((${PBS_JOBID%%[!0-9]*} + ${PBS_ARRAY_INDEX:-0})) # tasks of an array share a number
}

# use_first_nodes N: mpirun asks PBS for the nodes, too.
use_first_nodes() { use_first_lines "$1" PBS_NODEFILE; }

# own_jobs: the ids of this run's jobs that are in the queue and wait for no other one. Fails where the
# queue does not answer.
own_jobs() {
  local said
  said=$(timeout 60 qstat -f 2>&1) || return 1
  # Values go on in lines that begin with a tab. The paths of the log and of the script tell the run.
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
