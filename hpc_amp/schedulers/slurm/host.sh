# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Slurm.

scheduler_begins() {
  [ -n "${SLURM_JOB_ID:-}" ] || fail "this script runs under Slurm: sbatch $run_dir/launch.sh"
  job_id=$SLURM_JOB_ID
  # The SLURM_JOB_ID of an array's last task is the array's id, which stands for all tasks.
  [ -z "${SLURM_ARRAY_TASK_ID:-}" ] || job_id=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
}

# job_state JOB_ID HOST: print running or ended; nothing if Slurm does not answer.
job_state() {
  local said
  if said=$(timeout 60 squeue -h -j "$1" -o %T 2>&1); then
    case $said in
      RUNNING | SUSPENDED | STOPPED | SIGNALING | RESIZING | STAGE_OUT) echo running ;;
      COMPLETING) ;; # its script may still run
      *) echo ended ;; # a pending job waits to be started again
    esac
  elif [[ $said == *"Invalid job id"* ]]; then
    echo ended
  fi
}

# fact_of_job KEY: print a value of this job from `scontrol show job`.
fact_of_job() {
  timeout 20 scontrol show job "$job_id" 2>/dev/null | sed -nE "s/^(.* )?$1=([^ ]*).*/\2/p" || true
}

# starts_again: see ending.sh.
starts_again() {
  # At a requeue, Slurm increments `Restarts` at once; SLURM_RESTART_COUNT is the number of this start. If
  # Slurm lost the record of this start in a crash, the job is pending.
  local restarts
  [ "$(fact_of_job JobState)" != PENDING ] || return 0
  restarts=$(fact_of_job Restarts)
  [ "${restarts:-0}" -gt "${SLURM_RESTART_COUNT:-0}" ]
}

# may_start_again: see ending.sh.
may_start_again() {
  return 1
}

# preempted: see ending.sh.
preempted() {
  [[ $(fact_of_job PreemptTime) == [0-9]* ]]
}

ask_grace() {
  scontrol show config 2>/dev/null | sed -nE 's/^KillWait *= *([0-9]+).*/\1/p'
}

# read_allocation: set `hosts`, `deadline` and `port_seed` for this job.
read_allocation() {
  hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST") || fail "scontrol does not name the nodes"
  # The actual time limit: sbatch's command line may have changed it.
  end=$(squeue -h -j "$job_id" -o %e 2>/dev/null) || end=
  [[ $end != [0-9]* ]] || deadline=$(date -d "$end" +%s)
  port_seed=$SLURM_JOB_ID
  # srun must not inherit options of the shell that submitted the job.
  export SLURM_EXPORT_ENV=ALL SRUN_CPUS_PER_TASK=${job[step_cpus]}
}

# use_first_nodes N: set Slurm's variables so that srun sees a job with the first N nodes only.
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

# go_on: requeue this job and wait for its end. Returns if that is not possible.
go_on() {
  # Slurm ends this script when it requeues the job. The script waits for that, because its own end could
  # complete the job. If the controller does not answer, the request is repeated.
  local said pause accepted=no last_try=$((SECONDS + 3600))
  # Slurm also sends SIGTERM at the time limit, and accepts a requeue until it kills the job.
  trap '[ "$accepted" = yes ] || ! out_of_time || starts_again || scontrol requeue "$job_id" || true; exit 0' TERM
  while [ "$SECONDS" -lt "$last_try" ]; do
    if said=$(scontrol requeue "$job_id" 2>&1); then
      accepted=yes
      pause=30
    else
      say "$said" >&2
      pause=5
    fi
    case $said in
      *disabled* | *denied* | *Invalid*) break ;;
      *"pending execution"*) exit 0 ;; # the job was requeued, and this script gets its signal later
    esac
    sleep "$pause" &
    wait $! || true
  done
  record "${outcome:-failed}" "Slurm did not requeue the job"
}
