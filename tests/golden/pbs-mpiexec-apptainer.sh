#!/bin/bash -l
#PBS -N golden
#PBS -l select=2:ncpus=32:mpiprocs=4:ngpus=4:mem=65536mb:system=polaris
#PBS -l place=scatter
#PBS -l walltime=02:00:00
#PBS -q gpu
#PBS -A 'my project'
#PBS -j oe
#PBS -k doe
#PBS -o /projects/me/runs/golden/20261127-223455-kqzf/logs/job.log
#PBS -r y
#PBS -l filesystems=home:eagle
#PBS -M me@example.org
#
# golden: written by hpc-amp 0.0.0. Self-contained: edit a copy and submit it by hand if you like.
# Nodes 2, ranks per node 4, scheduler pbs, launcher mpiexec, container apptainer or singularity.

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
# Network between the nodes.
# slingshot: HPE Slingshot 11, for NCCL and libfabric
# From the user guides of ALCF, OLCF, NERSC and CSCS, where they agree.
# If jobs hang, try launch.fabric=slingshot-no-eager; for the full speed, with the site's plugin mounted, launch.fabric=slingshot-ofi.
export NCCL_CROSS_NIC=1
export NCCL_NET_GDR_LEVEL=PHB
export FI_CXI_DISABLE_HOST_REGISTER=1
export FI_MR_CACHE_MONITOR=userfaultfd
export FI_CXI_DEFAULT_CQ_SIZE=131072
export FI_CXI_RX_MATCH_MODE=hybrid
export MPICH_GPU_SUPPORT_ENABLED=0
export NCCL_SOCKET_IFNAME=hsn
# Settings of the site.
export NCCL_SOCKET_IFNAME=hsn0,hsn1
module load apptainer
set -u
export PYTHONNOUSERSITE=1 PYTHONUNBUFFERED=1
export OMP_NUM_THREADS=8

# ---- allocation ----------------------------------------------------------------------------------
# What PBS gave us. A host stands in the node file once for each process of its chunk.
[ -n "${PBS_JOBID:-}" ] || fail "this script runs under PBS: qsub $run_dir/launch.sh"
job_id=$PBS_JOBID
hosts=$(awk 'NF && !seen[$1]++ { print $1 }' "${PBS_NODEFILE:-/nonexistent}") || fail "no node file at ${PBS_NODEFILE:-PBS_NODEFILE}"
allocated=$(wc -l <<<"$hosts")
[ "$allocated" -eq 2 ] || fail "the job has $allocated nodes, but was made for 2"
master_addr=${hosts%%$'\n'*}
# The name that leads to the fast network; a node file may give a full name.
master_addr=${master_addr%%.*}-ib0
# The time limit as it really is: qsub's command line may have changed it.
limit=$(timeout 20 qstat -f "$PBS_JOBID" 2>/dev/null | sed -nE 's/^ *Resource_List\.walltime = ([0-9:]+)$/\1/p') || limit=
limit=$(awk -F: 'NF { for (i = 1; i <= NF; i++) s = s * 60 + $i; print s }' <<<"$limit")
deadline=$(($(date +%s) + ${limit:-7200}))
port_seed=${PBS_JOBID%%[!0-9]*}

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
python=python3
program=("$run_dir/src" --job "$run_dir/job.json")
image='/projects/images/pytorch 25.sif'
runtime=$(command -v apptainer) ||
  fail "no apptainer on $HOSTNAME: load its module in job.setup"
[ -r "$image" ] || fail "the image $image is not readable on $HOSTNAME"
# A program of either name may be either: ask it. All but the oldest evaluate words as shell unless
# they are told not to: Apptainer since 1.1, SingularityCE since 3.10.
flavour=$("$runtime" --version) || fail "$runtime does not run on $HOSTNAME"
no_eval=(--no-eval)
case $flavour in
  "apptainer version 1.0"* | "singularity version "* | singularity-*" version 3."[0-9][!0-9]*) no_eval=() ;;
esac
echo "container: $flavour, $image"
export TMPDIR=/tmp HPC_AMP_CONTAINER=1
# These would replace the image's search path for libraries. Inside, they are put in front of it.
HPC_AMP_LD_LIBRARY_PATH=${APPTAINERENV_LD_LIBRARY_PATH:-${SINGULARITYENV_LD_LIBRARY_PATH:-}}
[ -z "$HPC_AMP_LD_LIBRARY_PATH" ] || export HPC_AMP_LD_LIBRARY_PATH
unset APPTAINERENV_LD_LIBRARY_PATH SINGULARITYENV_LD_LIBRARY_PATH
container=("$runtime" exec "${no_eval[@]}"
  --nv
  -B /scratch
  -B /projects/data:/data:ro
  -B .
  -B /projects/me
  --pwd /projects/me/runs/golden/20261127-223455-kqzf
  "$image")
unset PYTHONPATH PYTHONHOME

# ---- launch --------------------------------------------------------------------------------------
HPC_AMP_HOST_MPI=$(mpiexec --version 2>&1 | head -n 2 | tr '\n' ' ') || HPC_AMP_HOST_MPI=unknown
export HPC_AMP_HOST_MPI
printf '%s\n' "$hosts" >"attempts/$attempt/hosts"
case $(mpiexec --version 2>&1) in
  *"Open MPI"* | *OpenRTE* | *PRRTE*) fail "mpiexec is Open MPI's here: use launch.method=mpirun" ;;
  *HYDRA* | *"Intel(R) MPI"*) placement=(-genvall) ;;
  *) placement=(--envall --cpu-bind depth --depth 8) ;; # PALS
esac
# Every node looks at itself before any rank starts: at what would keep the ranks from starting, or
# let them wait for one another in vain. `launch.preflight: false` leaves it out.
printf '%s\n' "$hosts" >"attempts/$attempt/nodes"
# shellcheck disable=SC2016 # each node expands this for itself
preflight=(bash -c '[ -r "$1" ] || { echo "hpc-amp: preflight: run.dir: $1 is not there on $(uname -n)" >&2; exit; }; exec bash "$@"'
  bash "$run_dir/src/hpc_amp/distributed/preflight.sh" "$run_dir/attempts/$attempt" "$image"
  /scratch
  /projects/data
  .
  /projects/me
  -- "${container[@]}" "$python" "${program[@]}" --preflight "$run_dir/attempts/$attempt")
timeout --kill-after=10 600 mpiexec -n "$HPC_AMP_NNODES" -ppn 1 -hostfile "attempts/$attempt/hosts" "${placement[@]}" --verbose \
    "${preflight[@]}" </dev/null || true
# The first node has heard of the others. Where nothing could start on it, another may say why.
verdict=$(cat "attempts/$attempt"/preflight.json "attempts/$attempt"/preflight-*.json 2>/dev/null |
  sed -nE 's/^ "failed": "(.+)",$/\1/p' | head -n 1) || true
[ -e "attempts/$attempt/preflight.json" ] || verdict=${verdict:-"no answer from the first node, see the log"}
[ -z "$verdict" ] ||
  fail "preflight: $verdict; no rank was started (launch.preflight=false leaves this check out)" "preflight: $verdict"
# The program will use MPI: see first whether the ranks find each other through it.
program+=(--mpi-probe)
timeout --kill-after=10 600 mpiexec -n "$HPC_AMP_WORLD_SIZE" -ppn "$HPC_AMP_PPN" -hostfile "attempts/$attempt/hosts" "${placement[@]}" --verbose \
    "${container[@]}" "$python" "${program[@]}" </dev/null ||
  fail "the ranks do not find each other through MPI, see above" "the ranks do not find each other through MPI"
unset 'program[-1]'
echo "attempt $attempt of job $job_id: 8 rank(s) on 2 node(s), first $master_addr:$MASTER_PORT, stops by $(date -d "@$HPC_AMP_STOP_AT" '+%F %T')"
stop_signal=
launch_pid=
# ask_to_stop SIGNAL: the ranks look for the stop file; launchers that forward signals are faster.
# shellcheck disable=SC2317 # traps call it
ask_to_stop() {
  stop_signal=$1
  touch "attempts/$attempt/stop"
}
for name in USR1 USR2 TERM INT; do
  # shellcheck disable=SC2064 # the name of this round is meant
  trap "ask_to_stop $name" "$name"
done

mpiexec -n "$HPC_AMP_WORLD_SIZE" -ppn "$HPC_AMP_PPN" -hostfile "attempts/$attempt/hosts" "${placement[@]}" --verbose \
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
      next=$(sed -nE '/^[0-9]+\.[^ ]+$/p' <<<"$next" | tail -n 1)
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
