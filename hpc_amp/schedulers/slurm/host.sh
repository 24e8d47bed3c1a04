# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Slurm.

scheduler_begins() {
  [ -n "${SLURM_JOB_ID:-}" ] || fail "this script runs under Slurm: sbatch $run_dir/launch.sh"
  job_id=$SLURM_JOB_ID
  # The last task of an array has the array's own id, which would mean all of its tasks.
  [ -z "${SLURM_ARRAY_TASK_ID:-}" ] || job_id=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
}

# job_state JOB_ID HOST: running or ended; nothing where Slurm does not say.
job_state() {
  local said
  if said=$(timeout 60 squeue -h -j "$1" -o %T 2>&1); then
    case $said in
      RUNNING | SUSPENDED | STOPPED | SIGNALING | RESIZING | STAGE_OUT) echo running ;;
      COMPLETING) ;; # its script may be at work
      *) echo ended ;; # also one that waits to be started once more
    esac
  elif [[ $said == *"Invalid job id"* ]]; then
    echo ended
  fi
}

# fact_of_job KEY: of this job, as Slurm has it now.
fact_of_job() {
  timeout 20 scontrol show job "$job_id" 2>/dev/null | sed -nE "s/^(.* )?$1=([^ ]*).*/\2/p" || true
}

# starts_again: whether the scheduler has decided to start this very job once more.
starts_again() {
  # Slurm counts that at once (our own number is that of this start), unless it has forgotten in a
  # crash that the job had begun.
  local restarts
  [ "$(fact_of_job JobState)" != PENDING ] || return 0
  restarts=$(fact_of_job Restarts)
  [ "${restarts:-0}" -gt "${SLURM_RESTART_COUNT:-0}" ]
}

# may_start_again: whether the scheduler, after a SIGTERM, may start this job once more without saying
# so before.
may_start_again() {
  return 1
}

# preempted: whether this job has only the grace time left of a preemption.
preempted() {
  [[ $(fact_of_job PreemptTime) == [0-9]* ]]
}

ask_grace() {
  scontrol show config 2>/dev/null | sed -nE 's/^KillWait *= *([0-9]+).*/\1/p'
}

# read_allocation: what the scheduler gave this job: `hosts`, `deadline` and `port_seed`.
read_allocation() {
  # What Slurm gave us. Names come from scontrol on the host: it does not exist inside an image.
  hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST") || fail "scontrol does not name the nodes"
  # The time limit as it really is: sbatch's command line may have changed it.
  end=$(squeue -h -j "$job_id" -o %e 2>/dev/null) || end=
  [[ $end != [0-9]* ]] || deadline=$(date -d "$end" +%s)
  port_seed=$SLURM_JOB_ID
  # srun must not inherit options of whoever submitted; it gets its own below.
  export SLURM_EXPORT_ENV=ALL SRUN_CPUS_PER_TASK=${job[step_cpus]}
}

# use_first_nodes N: the first N nodes of this job, as a job of their own for srun.
use_first_nodes() {
  local tasks=${job[tasks_per_node]}
  if [ -z "${all_nodes:-}" ]; then
    all_nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST") || fail "scontrol does not name the nodes"
    cores_of_node=${SLURM_JOB_CPUS_PER_NODE:-1}
    cores_of_node=${cores_of_node%%[!0-9]*}
  fi
  SLURM_JOB_NODELIST=$(head -n "$1" <<<"$all_nodes" | paste -sd ,)
  export SLURM_JOB_NODELIST SLURM_NODELIST=$SLURM_JOB_NODELIST
  export SLURM_JOB_NUM_NODES=$1 SLURM_NNODES=$1 SLURM_NTASKS=$(($1 * tasks)) SLURM_NPROCS=$(($1 * tasks))
  export SLURM_TASKS_PER_NODE="$tasks(x$1)" SLURM_JOB_CPUS_PER_NODE="$cores_of_node(x$1)"
}

# go_on: have the script started again; returns where that cannot be had.
go_on() {
  # From the host: scontrol does not exist inside the image. Slurm terminates this script when it
  # requeues the job, so it waits for that: leaving first might complete the job. A controller that
  # does not answer is asked again; while it is away, nobody ends this job either.
  local said pause accepted=no last_try=$((SECONDS + 3600))
  # At the time limit Slurm terminates, too, and can be asked until it kills.
  trap '[ "$accepted" = yes ] || [ "$(date +%s)" -lt "$deadline" ] || starts_again || scontrol requeue "$job_id" || true; exit 0' TERM
  while [ "$SECONDS" -lt "$last_try" ]; do
    if said=$(scontrol requeue "$job_id" 2>&1); then
      accepted=yes
      pause=30
    else
      echo "$said" >&2
      pause=5
    fi
    case $said in
      *disabled* | *denied* | *Invalid*) break ;;
      *"pending execution"*) exit 0 ;; # it was requeued before this script was told to end
    esac
    sleep "$pause" &
    wait $! || true
  done
  record "${outcome:-failed}" "Slurm did not requeue the job"
}
