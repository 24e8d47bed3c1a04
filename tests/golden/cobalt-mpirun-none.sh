#!/bin/bash -l
#COBALT --jobname golden
#COBALT -n 2
#COBALT -t 120
#COBALT --cwd /projects/me/runs/golden/20261127-223455-kqzf
#COBALT -o /projects/me/runs/golden/20261127-223455-kqzf/logs/job.log
#COBALT -e /projects/me/runs/golden/20261127-223455-kqzf/logs/job.log
#COBALT --debuglog /projects/me/runs/golden/20261127-223455-kqzf/logs/$jobid.cobaltlog
#COBALT -q gpu
#COBALT -A my_project
#COBALT --attrs filesystems=home
#
# golden: written by hpc-amp 0.0.0. Self-contained: edit a copy and submit it by hand if you like.
# Nodes 2, ranks per node 4, scheduler cobalt, launcher mpirun, container none.

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
  # The jobs that wait for this one leave the queue, if this node can tell it. Those that do not
  # find out by themselves that nothing is left to do.
  while read -r link; do
    qdel "$link" </dev/null || true
  done < <(awk -v own="$job_id" 'found { print } $0 == own { found = 1 }' chain 2>/dev/null)
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
# What Cobalt gave us. Of its variables only these two always reach the script.
[ -n "${COBALT_JOBID:-}" ] || fail "this script runs under Cobalt: qsub $run_dir/launch.sh"
job_id=$COBALT_JOBID
hosts=$(awk 'NF && !seen[$1]++ { print $1 }' "${COBALT_NODEFILE:-/nonexistent}") || fail "no node file at ${COBALT_NODEFILE:-COBALT_NODEFILE}"
allocated=$(wc -l <<<"$hosts")
[ "$allocated" -eq 2 ] || fail "the job has $allocated nodes, but was made for 2"
master_addr=${hosts%%$'\n'*}
# The time limit as it really is, where this node can ask: qsub's command line may have changed it.
limit=$(timeout 20 qstat --header WallTime "$COBALT_JOBID" 2>/dev/null | sed -nE 's/^ *([0-9]+:[0-9]{2}:[0-9]{2}) *$/\1/p') || limit=
limit=$(awk -F: 'NF { for (i = 1; i <= NF; i++) s = s * 60 + $i; print s }' <<<"$limit")
deadline=$(($(date +%s) + ${limit:-7200}))
port_seed=$COBALT_JOBID

# ---- turn: whether it is this job's, after what the ones before came to ---------------------------
nothing_to_do() {
  echo "job $job_id has nothing to do: $1"
  exit 0
}
[ "$(count cancelled)" -eq 0 ] || nothing_to_do "the run was cancelled"
if grep -qxF -e "$job_id" chain 2>/dev/null; then
  last=$(grep -v '"state": "queued"' state.jsonl | tail -n 1)
  case $last in
    *'"state": "finished"'* | *'"state": "failed"'* | *'"state": "checkpointed"'* | *'"state": "terminated"'*)
      nothing_to_do "the run has ended"
      ;;
    *'"state": "started"'*"\"job_id\": \"$job_id\""*) ;; # this job, started once more
    *'"state": "started"'*)
      if [ "$(count retried)" -ge 1 ]; then
        record failed "the job before this one was killed"
        end 1
      fi
      record retried "the job before this one was killed"
      ;;
  esac
fi

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
awk '{ print $1 " slots=4" }' <<<"$hosts" >"attempts/$attempt/hosts"
# Open MPI hands on no variable by itself: every one is named.
carried=()
for name in $(compgen -e); do
  case $name in
    OMPI_* | ORTE_* | PRTE_* | PMI* | SLURM_* | SSH_* | XDG_*) ;;
    HOSTNAME | PWD | OLDPWD | SHLVL | _ | TERM | DISPLAY) ;;
    *) carried+=(-x "$name") ;;
  esac
done
# Every node looks at itself before any rank starts: at what would keep the ranks from starting, or
# let them wait for one another in vain. `launch.preflight: false` leaves it out.
printf '%s\n' "$hosts" >"attempts/$attempt/nodes"
# shellcheck disable=SC2016 # each node expands this for itself
preflight=(bash -c '[ -r "$1" ] || { echo "hpc-amp: preflight: run.dir: $1 is not there on $(uname -n)" >&2; exit; }; exec bash "$@"'
  bash "$run_dir/src/hpc_amp/distributed/preflight.sh" "$run_dir/attempts/$attempt" ''
  -- "${container[@]}" "$python" "${program[@]}" --preflight "$run_dir/attempts/$attempt")
timeout --kill-after=10 600 mpirun -n "$HPC_AMP_NNODES" --hostfile "attempts/$attempt/hosts" --map-by ppr:1:node --bind-to none "${carried[@]}" \
    "${preflight[@]}" </dev/null || true
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

mpirun -n "$HPC_AMP_WORLD_SIZE" --hostfile "attempts/$attempt/hosts" --map-by ppr:4:node --bind-to none "${carried[@]}" \
    "${container[@]}" "$python" "${program[@]}" </dev/null &
launch_pid=$!
# A trap interrupts `wait`; the launcher may still be saving then.
while kill -0 "$launch_pid" 2>/dev/null; do
  wait "$launch_pid" || true
done
status=0
wait "$launch_pid" || status=$?
# At its time limit a job gets the same signal as when it is deleted.
[ -z "$stop_signal" ] || [ "$(date +%s)" -lt "$deadline" ] || stop_signal=LIMIT

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
    # This job ends with 0 then: Cobalt starts none that waits for one that did not.
    next=$(awk -v own="$job_id" 'found { print; exit } $0 == own { found = 1 }' chain 2>/dev/null) || next=
    if [ -z "$next" ]; then
      next=$(qsub "$run_dir/launch.sh") || true
      next=$(sed -nE 's/^([0-9]+)( .*)?$/\1/p' <<<"$next" | tail -n 1)
    fi
    if [ -n "$next" ]; then
      (job_id=$next && record queued "")
      echo "going on in job $next"
      exit 0
    fi
    record "${outcome:-failed}" "$HOSTNAME could not submit the next job"
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
