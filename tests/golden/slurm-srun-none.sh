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
# golden: written by hpc-amp 0.0.0. Self-contained: edit a copy and submit it by hand if you like.
# Nodes 2, ranks per node 4, scheduler slurm, launcher srun, container none.

set -eo pipefail

run_dir=/projects/me/runs/golden/20261127-223455-kqzf
cd "$run_dir"

# ---- state of the run, for `hpc-amp status` and for whoever reads it later -----------------------
job_id=unknown
attempt=0

# record STATE REASON: one line of state.jsonl. Both are our own words: plain text without quotes.
record() {
  printf '{"time": %s, "state": "%s", "attempt": %s, "job_id": "%s", "reason": "%s"}\n' \
    "$(date +%s)" "$1" "$attempt" "$job_id" "$2" >>state.jsonl
}

# end STATUS: nothing is to come after this attempt.
end() {
  exit "$1"
}

# fail MESSAGE [REASON]: an error of the launch itself, not of the training.
fail() {
  echo "hpc-amp: $1" >&2
  record failed "${2:-the launch script could not start the job, see the log}" || true
  end 2
}

# How often STATE was recorded since the job was last submitted.
count() {
  awk -v state="\"state\": \"$1\"" \
    '/"state": "submitted"/ { n = 0 } index($0, state) { n++ } END { print n + 0 }' state.jsonl
}

# ---- software: no leftovers of the login shell, then what site and user set up -------------------
unset PYTHONPATH PYTHONHOME PYTHONSTARTUP LC_ALL RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT
# Settings of the site.
export NCCL_SOCKET_IFNAME=hsn0,hsn1
module load apptainer
set -u
export PYTHONNOUSERSITE=1 PYTHONUNBUFFERED=1
export OMP_NUM_THREADS=8

# ---- allocation ----------------------------------------------------------------------------------
# What Slurm gave us. Names come from scontrol on the host: it does not exist inside an image.
[ -n "${SLURM_JOB_ID:-}" ] || fail "this script runs under Slurm: sbatch $run_dir/launch.sh"
job_id=$SLURM_JOB_ID
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST") || fail "scontrol does not name the nodes"
allocated=$(wc -l <<<"$hosts")
[ "$allocated" -eq 2 ] || fail "the job has $allocated nodes, but was made for 2"
master_addr=${hosts%%$'\n'*}
# The name that leads to the fast network; a node file may give a full name.
master_addr=${master_addr%%.*}-ib0
# The time limit as it really is: sbatch's command line may have changed it.
end=$(squeue -h -j "$SLURM_JOB_ID" -o %e 2>/dev/null) || end=
deadline=$(date -d "$end" +%s 2>/dev/null) || deadline=
[ -n "$end" ] && [ -n "$deadline" ] || deadline=$(($(date +%s) + 7200))
port_seed=$SLURM_JOB_ID
# srun must not inherit options of whoever submitted; it gets its own below.
export SLURM_EXPORT_ENV=ALL SRUN_CPUS_PER_TASK=8

# ---- attempt: numbered by making its folder, which only one can -----------------------------------
mkdir -p attempts logs 2>/dev/null || fail "cannot write in $run_dir: no space, or no permission"
attempt=1
until mkdir "attempts/$attempt" 2>/dev/null; do
  [ -d "attempts/$attempt" ] || fail "cannot write in $run_dir/attempts: no space, or no permission"
  attempt=$((attempt + 1))
done
record started "on $HOSTNAME"

export HPC_AMP_WORLD_SIZE=8 HPC_AMP_NNODES=2 HPC_AMP_PPN=4
export HPC_AMP_ATTEMPT=$attempt
export HPC_AMP_OUTCOME_FILE="$run_dir/attempts/$attempt/outcome.json"
# The run saves and stops before the scheduler ends it, with or without a signal.
export HPC_AMP_STOP_AT=$((deadline - 120))
export MASTER_ADDR=$master_addr
# Above the range of ephemeral ports, and another one for each job and attempt.
export MASTER_PORT=$((61000 + (port_seed * 13 + attempt) % 4536))
# Under names that no image sets: an image's own values would win over all others.
export HPC_AMP_MASTER_ADDR=$MASTER_ADDR HPC_AMP_MASTER_PORT=$MASTER_PORT HPC_AMP_JOB_ID=$job_id

# ---- program -------------------------------------------------------------------------------------
python=/projects/venv/bin/python
program=("$run_dir/src" --job "$run_dir/job.json")
container=(env) # runs what follows as it is
[ -x "$(command -v "$python")" ] || fail "no Python at $python on $HOSTNAME"

# ---- launch --------------------------------------------------------------------------------------
# Every node looks at itself before any rank starts: at what would keep the ranks from starting, or
# let them wait for one another in vain. `launch.preflight: false` leaves it out.
printf '%s\n' "$hosts" >"attempts/$attempt/nodes"
# shellcheck disable=SC2016 # each node expands this for itself
preflight=(bash -c '[ -r "$1" ] || { echo "hpc-amp: preflight: run.dir: $1 is not there on $(uname -n)" >&2; exit; }; exec bash "$@"'
  bash "$run_dir/src/hpc_amp/distributed/preflight.sh" "$run_dir/attempts/$attempt" ''
  -- "${container[@]}" "$python" "${program[@]}" --preflight "$run_dir/attempts/$attempt")
timeout --kill-after=10 600 srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=8 --distribution=block:block --mpi=none --kill-on-bad-exit=0 --label "${preflight[@]}" </dev/null || true
# The first node has heard of the others. Where nothing could start on it, another may say why.
verdict=$(cat "attempts/$attempt"/preflight.json "attempts/$attempt"/preflight-*.json 2>/dev/null |
  sed -nE 's/^ "failed": "(.+)",$/\1/p' | head -n 1) || true
[ -e "attempts/$attempt/preflight.json" ] || verdict=${verdict:-"no answer from the first node, see the log"}
[ -z "$verdict" ] ||
  fail "preflight: $verdict; no rank was started (launch.preflight=false leaves this check out)" "preflight: $verdict"
echo "attempt $attempt of job $job_id: 8 rank(s) on 2 node(s), first $master_addr:$MASTER_PORT, stops by $(date -d "@$HPC_AMP_STOP_AT" '+%F %T')"
stop_signal=
launch_pid=
# ask_to_stop SIGNAL: the ranks look for the stop file; launchers that forward signals are faster.
# shellcheck disable=SC2317 # traps call it
ask_to_stop() {
  stop_signal=$1
  touch "attempts/$attempt/stop"
  case $1 in
    USR1) [ -z "$launch_pid" ] || kill -s USR1 "$launch_pid" 2>/dev/null || true ;;
    USR2) [ -z "$launch_pid" ] || kill -s USR2 "$launch_pid" 2>/dev/null || true ;;
  esac
}
for name in USR1 USR2 TERM INT; do
  # shellcheck disable=SC2064 # the name of this round is meant
  trap "ask_to_stop $name" "$name"
done

srun --nodes=2 --ntasks=8 --ntasks-per-node=4 --cpus-per-task=8 --distribution=block:block --mpi=none --kill-on-bad-exit=1 --wait=60 --label "${container[@]}" "$python" "${program[@]}" </dev/null &
launch_pid=$!
# A trap interrupts `wait`; the launcher may still be saving then.
while kill -0 "$launch_pid" 2>/dev/null; do
  wait "$launch_pid" || true
done
status=0
wait "$launch_pid" || status=$?

# ---- outcome -------------------------------------------------------------------------------------
# The job says how it ended in a file, since some launchers hide exit codes.
outcome=$(sed -nE 's/.*"outcome" *: *"(finished|checkpointed|failed)".*/\1/p' "$HPC_AMP_OUTCOME_FILE" 2>/dev/null) || outcome=
cause=$(sed -n 's/.*"cause": "\([A-Z]*\)".*/\1/p' "$HPC_AMP_OUTCOME_FILE" 2>/dev/null) || cause=
echo "attempt $attempt ended: ${outcome:-failed} (status $status)"

# The job writes its summary itself, unless it is your own program, or died.
if [ ! -e summary.json ]; then
  printf '{"outcome": "%s", "name": "%s", "data": null, "synthetic": null, "accuracy": null, "images_per_second": null, "world_size": %s, "nodes": %s, "precision": null, "loss_scale": null, "skipped_steps": null, "steps": null, "seconds": %s}\n' \
    "${outcome:-failed}" golden 8 2 "$SECONDS" >summary.json
elif [ -z "$outcome" ] || [ "$outcome" = failed ]; then
  sed -i '0,/"outcome": "[a-z]*"/s//"outcome": "failed"/' summary.json
fi

go_on() {
    # From the host: scontrol does not exist inside the image. Slurm terminates this script when it
    # requeues the job, so it waits for that: leaving first might complete the job.
    trap 'exit 0' TERM
    if scontrol requeue "$SLURM_JOB_ID"; then
      sleep 300 &
      wait
    fi
    record "${outcome:-failed}" "Slurm did not requeue the job"
    [ "$outcome" = checkpointed ] || exit "$status"
    exit 75
}

case $outcome in
  finished)
    record finished ""
    end 0
    ;;
  checkpointed)
    if [ "$(count cancelled)" -gt 0 ]; then
      end 0
    elif [ "$stop_signal" = TERM ] || [ "$stop_signal" = INT ]; then
      # The whole job is being ended. If it was preempted, the scheduler starts it again; if it was
      # cancelled, it shall not start again.
      record terminated "saved at SIG$stop_signal"
      end 75
    elif [ "$cause" = TERMINATED ]; then
      # Only the ranks were told to terminate: that is how preemption begins. It does not count as
      # a restart: it may come any number of times.
      record preempted "the ranks were terminated"
      go_on
    elif [ -e "attempts/$attempt/stop" ] && [ -z "$stop_signal" ]; then
      record checkpointed "a stop was asked for"
      end 75
    elif [ "$(count continued)" -ge 10 ]; then
      record checkpointed "job.max_restarts reached"
      end 75
    fi
    record continued "stopped at a checkpoint"
    go_on
    ;;
  *)
    [ "$status" -ne 0 ] || status=1
    [ "$(count cancelled)" -eq 0 ] || end "$status"
    if [ -n "${stop_signal#LIMIT}" ] || [ "$(count retried)" -ge 1 ]; then
      record failed "exit status $status"
      end "$status"
    fi
    record retried "exit status $status"
    go_on
    ;;
esac
