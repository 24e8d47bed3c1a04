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
# Nodes 2, ranks per node 4, scheduler cobalt, launcher mpirun, container apptainer or singularity.

set -eo pipefail

# In a login shell `exit` runs ~/.bash_logout, which can change the exit status. So this shell is
# replaced by one that only exits. `at_exit` is called before, with the status.
# shellcheck disable=SC2317
exit() {
  local status=${1:-$?}
  [ "$BASHPID" = $$ ] || builtin exit "$status" # of a subshell
  trap - EXIT
  "$at_exit" "$status"
  exec /bin/sh -c 'exit "$1"' sh "$status"
}
at_exit=leave
trap '"$at_exit" $?' EXIT

run_dir=/projects/me/runs/golden/20261127-223455-kqzf
cd "$run_dir"
trap : USR1 USR2 # a warning before this script listens must not end it: the clock says the same

# run_child VARIABLE COMMAND ...: run a function that ends with `exec`, and return its exit status.
# VARIABLE is its process id meanwhile, and `pass_on` gets a signal that came before it was known.
# `wait` would do, if bash 5.2 did not lose the end of a child that comes together with a signal. So a
# shell that no signal ends runs the child in its foreground, and tells its status through a pipe.
run_child() {
  local variable=$1 answers output status=
  shift
  exec {output}>&1
  exec {answers}< <(
    trap : HUP INT TERM USR1 USR2
    status=0
    (
      echo "$BASHPID"
      exec >&"$output" {output}>&-
      "$@"
    ) || status=$?
    echo "$status"
  )
  exec {output}>&-
  read -r "${variable?}" <&"$answers" || true
  [ -z "$stop_signal" ] || pass_on "$stop_signal"
  read -r status <&"$answers" || true
  exec {answers}<&-
  printf -v "$variable" ''
  return "${status:-137}" # the shell beside this one was killed
}

# ---- state of the run, for `hpc-amp status` and for whoever reads it later -----------------------
job_id=unknown
attempt=0
outcome=
status=2
stop_signal=
launch_pid=
own=
keeper=
began=$(date +%s)
deadline=$((began + 7200))

# record STATE REASON [JOB_ID]: one line of state.jsonl. A disk that is full costs the line, not what
# comes after it.
record() {
  local reason=${2//\\/\\\\}
  reason=${reason//\"/\\\"}
  printf '{"time": %s, "state": "%s", "attempt": %s, "job_id": "%s", "reason": "%s"}\n' \
    "$(date +%s)" "$1" "$attempt" "${3:-$job_id}" "${reason//[[:cntrl:]]/?}" >>state.jsonl || true
}

# How often STATE was recorded since the job was last submitted.
count() {
  { cat state.jsonl 2>/dev/null || true; } | awk -v state="\"state\": \"$1\"" \
    '/"state": "submitted"/ { n = 0 } index($0, state) { n++ } END { print n + 0 }'
}

# newest_step: of the checkpoints.
newest_step() {
  { find checkpoints -maxdepth 1 -regex 'checkpoints/step-[0-9]+' 2>/dev/null || true; } |
    awk -F - '$NF > newest { newest = $NF } END { print newest + 0 }'
}

# ---- how an attempt ends -------------------------------------------------------------------------
# end STATUS: nothing is to come after it.
end() {
  # Not where this job may start again and go on in them.
  if ! ended_from_outside || ! may_start_again || [ "$(count cancelled)" -gt 0 ]; then
    drop_links
  fi
  exit "$1"
}

# go_on: have the script started again; returns where that cannot be had.
go_on() {
  # This job ends with 0 then: Cobalt starts none that waits for one that did not.
  next=$(later_links | head -n 1)
  if [ -n "$next" ] && gone "$next"; then
    echo "job $next, which was to go on, is not in the queue any more"
    drop_links # the others wait for it, and would for ever
    next=
  fi
  [ -n "$next" ] || submit_next
  if [ -n "$next" ]; then
    record queued "" "$next"
    echo "going on in job $next"
    exit 0
  fi
  record "${outcome:-failed}" "$HOSTNAME could not submit the next job"
}

# another_attempt STATE REASON: this one is over and recorded, and the run goes on in the next.
another_attempt() {
  record "$1" "$2"
  leave
  go_on
  # It could not.
  [ "$outcome" = checkpointed ] || exit "$status"
  exit 75
}

# another_unless_stuck STATE REASON: the same, where a next attempt can be expected to come further.
another_unless_stuck() {
  # Whatever its step is: a damaged checkpoint that was passed over may have a higher one.
  local before=attempts/$((attempt - 1))/from made
  if [ "$(count started)" -ge 2 ] && [ -e "$before" ]; then
    made=$(find checkpoints -maxdepth 1 -regex 'checkpoints/step-[0-9]+' -newer "$before" 2>/dev/null) || made=
    if [ -z "$made" ]; then
      record failed "no progress in 2 attempts: still at step $(newest_step); the cause is in the log"
      end "$status"
    fi
  fi
  another_attempt "$1" "$2"
}

# ended_from_outside: the whole job is being ended. Whether it was cancelled or shall start again
# cannot be told from the signal.
ended_from_outside() { [ "$stop_signal" = TERM ] || [ "$stop_signal" = INT ]; }

# come_back REASON: what looks like a failure is none where the scheduler takes the nodes away: it
# starts the job again.
come_back() {
  if starts_again; then
    record requeued "$1"
    exit "$status"
  elif ! ended_from_outside && preempted; then
    another_attempt preempted "$1"
  fi
}

# record_failure REASON: for good, unless the scheduler may start this job again.
record_failure() {
  if ended_from_outside && may_start_again; then
    record killed "$1"
  else
    record failed "$1"
  fi
}

# fail MESSAGE [REASON]: an error of the launch itself, not of the training. Nothing is recorded
# before this is an attempt: another job may be at work on the run.
fail() {
  local reason=${2:-the launch script could not start the job, see the log}
  echo "hpc-amp: $1" >&2
  if [ "$attempt" -gt 0 ]; then
    [ "$(count cancelled)" -eq 0 ] || end 2 # which is what made it fail
    come_back "$reason"
    record_failure "$reason"
  fi
  end 2
}

# ---- attempt: one at a time ----------------------------------------------------------------------
# attempts/N has its owner in it from the first moment: it is made aside and renamed, which only one
# job can do. `alive` is touched as long as this script lives, and `ended` says that nothing of the
# attempt is at work any more. A job that dies with its node leaves no `ended`: then the scheduler
# says what has become of it, or, where it cannot, the age of `alive`.
heartbeat=3
quiet=10  # so long without, and a job that has ended has left nothing behind
lease=180 # so long without, and a job of which nobody knows has ended

# owner_of N KEY: who made attempt N; nothing where nobody did.
owner_of() {
  sed -nE "s/.*\"$2\": \"?([^\",}]*).*/\1/p" "attempts/$1/owner" 2>/dev/null || true
}

# silence N: seconds since attempt N gave a sign of life, by the file server's clock alone.
silence() {
  touch "$own/alive"
  : <"attempts/$1/alive" || true # asks the server, where file attributes are cached
  echo $(($(stat -c %Y "$own/alive") - $(stat -c %Y "attempts/$1/alive" || echo 0)))
} 2>/dev/null

# give_way_to N: return when attempt N is over; end this job where it is at work.
give_way_to() {
  local owner host limit beat first_beat=
  owner=$(owner_of "$1" job_id)
  host=$(owner_of "$1" host)
  # The scheduler has ended a job that it starts once more.
  while [ -n "$owner" ] && [ "$owner" != "$job_id" ] && [ ! -e "attempts/$1/ended" ]; do
    case $(job_state "$owner" "$host") in
      running) refuse "$1" ;;
      ended) limit=$quiet ;;
      *) limit=$lease ;;
    esac
    [ "$(silence "$1")" -lt "$limit" ] || return 0
    # Whatever the scheduler says: it may not show the jobs of others.
    beat=$(stat -c %Y "attempts/$1/alive")
    [ "$beat" = "${first_beat:-$beat}" ] || refuse "$1"
    [ -n "$first_beat" ] ||
      echo "job $owner on $host has not said that it has ended: waiting for a sign of life"
    first_beat=$beat
    sleep "$heartbeat"
  done
}

# refuse N: another job is at work on this run. What it records shall stand.
refuse() {
  echo "hpc-amp: job $(owner_of "$1" job_id) on $(owner_of "$1" host) has been at work on this run since $(date -d "@$(owner_of "$1" time)" '+%F %T') (attempt $1); two at once would spoil it" >&2
  exit 2
}

# claim N: make attempt N ours. The owner tells whether that was done; a file server may have lost
# its answer.
claim() {
  mv -T "$own" "attempts/$1" 2>/dev/null || true
  [ "$(cat "attempts/$1/owner" 2>/dev/null)" = "$me" ]
}

# outlive N: wait for what an earlier start of this job has left behind, on a node that has lost only
# its daemon. The folder of this attempt tells it to stop.
outlive() {
  local patience=$((SECONDS + lease)) waits=no
  while [ ! -e "attempts/$1/ended" ] && [ "$(silence "$1")" -lt "$quiet" ] && [ "$SECONDS" -lt "$patience" ]; do
    [ "$waits" = yes ] || echo "attempt $1 was at work a moment ago: waiting for its end"
    waits=yes
    sleep 2
  done
}

# superseded: whether the scheduler took this attempt for dead, and another has the run now.
superseded() { [ -e "attempts/$((attempt + 1))" ]; }

# keep_alive: the sign of life. Deaf to signals that all processes of a job get.
keep_alive() {
  local self=$BASHPID pause
  trap '' HUP INT TERM USR1 USR2
  exec {pause}<> <(:) # to wait without a child that would outlive this one
  while [ "$(awk '/^PPid:/ { print $2 }' "/proc/$self/status")" = $$ ]; do
    ! superseded || kill -s TERM $$
    touch "attempts/$attempt/alive"
    read -r -t "$heartbeat" -u "$pause" _ || true
  done
}

# leave: nothing of this attempt is at work any more.
leave() {
  [ -z "$launch_pid" ] || return 0
  if [ "$attempt" -eq 0 ]; then
    [ -z "$own" ] || rm -rf "$own"
    return 0
  fi
  kill -s KILL "$keeper" || true
  keeper=
  touch "attempts/$attempt/ended" || true
} 2>/dev/null

# pass_on SIGNAL: the ranks look for the stop file; launchers that forward signals are faster.
# shellcheck disable=SC2317 # traps call it
pass_on() {
  stop_signal=$1
  touch "attempts/$attempt/stop" || true
  [ -n "$launch_pid" ] || return 0
  ! superseded || kill -s TERM "$launch_pid" 2>/dev/null || true
  case $1 in
    USR1) kill -s USR1 "$launch_pid" 2>/dev/null || true ;;
    USR2) kill -s USR2 "$launch_pid" 2>/dev/null || true ;;
  esac
}

# begin_attempt: claim the next one. From here on this script has something to record.
begin_attempt() {
  mkdir -p attempts logs 2>/dev/null || fail "cannot write in $run_dir: no space, or no permission"
  own=attempts/.claim-$job_id-$$
  me=$(printf '{"job_id": "%s", "host": "%s", "pid": %s, "time": %s}' "$job_id" "$HOSTNAME" $$ "$(date +%s)")
  { mkdir -p "$own" && echo "$me" >"$own/owner" && touch "$own/alive"; } 2>/dev/null ||
    fail "cannot write in $run_dir/attempts: no space, or no permission"
  while :; do
    newest=$(find attempts -maxdepth 1 -regex 'attempts/[0-9]+' | sed 's|.*/||' | sort -n | tail -n 1)
    newest=${newest:-0}
    [ "$newest" -eq 0 ] || give_way_to "$newest"
    turn
    ! claim "$((newest + 1))" || break
    [ -d "attempts/$((newest + 1))" ] ||
      fail "cannot write in $run_dir/attempts: no space, or no permission"
  done
  attempt=$((newest + 1))
  keep_alive </dev/null >/dev/null 2>&1 &
  keeper=$!
  disown "$keeper"
  own=attempts/$attempt
  for name in USR1 USR2 TERM INT; do
    # shellcheck disable=SC2064 # the name of this round is meant
    trap "pass_on $name" "$name"
  done
  [ "$newest" -eq 0 ] || outlive "$newest"
  newest_step >"attempts/$attempt/from" || true
}

# ---- the job, and what its scheduler says of jobs ------------------------------------------------
# Of Cobalt's variables only two always reach the script.
[ -n "${COBALT_JOBID:-}" ] || fail "this script runs under Cobalt: qsub $run_dir/launch.sh"
job_id=$COBALT_JOBID

# job_state JOB_ID HOST: running or ended; nothing where Cobalt does not say.
job_state() {
  local said
  # It says nothing at all of a job that it does not know, with status 1.
  said=$(timeout 60 qstat --header JobID:State "$1" 2>&1) || [ -z "$said" ] || return 0
  case $(awk -v id="$1" '$1 == id { print $2 }' <<<"$said") in
    starting | running | preempting) echo running ;;
    exiting | killing) ;; # its script may be at work
    *) echo ended ;;
  esac
}

# gone JOB_ID: whether Cobalt says, by silence and a status of 1, that this job is not in its queue.
gone() {
  local said status=0
  said=$(timeout 60 qstat --header JobID:State "$1" 2>&1) || status=$?
  [ "$status" -eq 1 ] && [ -z "$said" ]
}

# starts_again: whether the scheduler has decided to start this very job once more.
starts_again() {
  return 1
}

# may_start_again: whether the scheduler, after a SIGTERM, may start this job once more without telling
# it before.
may_start_again() {
  return 1
}

# preempted: whether this job has only the grace time left of a preemption.
preempted() {
  return 1
}

nothing_to_do() {
  echo "job $job_id has nothing to do: $1"
  exit 0
}

# turn_of_link: for a job that was submitted beforehand.
turn_of_link() {
  case $(grep -v '"state": "queued"' state.jsonl | tail -n 1) in
    *"\"job_id\": \"$job_id\""*) ;; # this job, started once more
    *'"state": "finished"'* | *'"state": "failed"'* | *'"state": "checkpointed"'* | *'"state": "terminated"'* | *'"state": "killed"'*)
      nothing_to_do "the run has ended"
      ;;
    *'"state": "started"'*)
      if [ "$(count retried)" -ge 1 ]; then
        record failed "the job before this one was killed"
        end 1
      fi
      record retried "the job before this one was killed"
      ;;
  esac
}

# later_links: the jobs of the chain behind this one.
later_links() { awk -v own="$job_id" 'found { print } $0 == own { found = 1 }' chain 2>/dev/null || true; }

# drop_links: they leave the queue, if this node can tell it. Those that do not find out by themselves
# that nothing is left to do.
drop_links() {
  local link
  while read -r link; do
    qdel "$link" </dev/null || true
  done < <(later_links)
}

# submit_next: the script once more, as the job `next`. Only a server that is away is waited for: any
# other answer may have been lost behind a job that was accepted, or be for good.
submit_next() {
  local said last=no
  stop_signal=
  while :; do
    said=$(qsub "$run_dir/launch.sh" 2> >(sed 's/^/> /')) || true
    echo "$said"
    next=$(sed -nE 's/^([0-9]+)( .*)?$/\1/p' <<<"$said" | tail -n 1)
    if [ -n "$next" ] || [ "$last" = yes ] || ! server_is_away "$said"; then
      return 0
    fi
    # If it answers other questions now, either it is back, or this node may not submit.
    [ -z "$(job_state "$job_id" "$HOSTNAME")" ] || last=yes
    # Not beyond the end of this job, and not when it was deleted meanwhile.
    [ -z "$stop_signal" ] && [ "$(date +%s)" -lt $((deadline - 15)) ] || return 0
    sleep 5 &
    wait $! || true
  done
}

# server_is_away WHAT-QSUB-SAID: where it has answered this node before.
server_is_away() {
  [ -n "$limit" ] && grep -qiE 'connection refused|(cannot|failed to) connect' <<<"$1"
}

# turn: whether it is this job's, after what the ones before came to.
turn() {
  [ "$(count cancelled)" -eq 0 ] || nothing_to_do "the run was cancelled"
  ! grep -qxF -e "$job_id" chain 2>/dev/null || turn_of_link
  # The cancellation may have come when this job was asking for its next start.
  if [ "$(count cancelled)" -gt 0 ] && [ "$(owner_of "$newest" job_id)" = "$job_id" ]; then
    echo "job $job_id has nothing to do: the run was cancelled"
    exit 0
  fi
  if [ "$(count stopping)" -gt 0 ] && [ "$(count finished)" -eq 0 ]; then
    echo "a stop was asked for before job $job_id began: go on with hpc-amp resume"
    record checkpointed "a stop was asked for"
    end 75
  fi
}

# setup_failed WHAT: a line of `setup` has ended this script.
# shellcheck disable=SC2317 # setup_ended calls it
setup_failed() {
  begin_attempt
  fail "$1" "$1"
}
# A signal ends `setup`; what comes after it sees that.
trap 'stop_signal=TERM; [ "$at_exit" = leave ] || exit 143' TERM
trap 'stop_signal=INT; [ "$at_exit" = leave ] || exit 130' INT

# ---- software: no leftovers of the login shell, then what site and user set up -------------------
unset PYTHONPATH PYTHONHOME PYTHONSTARTUP LC_ALL RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT
# Settings of the site.
export NCCL_SOCKET_IFNAME=hsn0,hsn1
# The lines of `setup` run as in a script of their own: a line that fails ends nothing by itself.
# The log names it, and also the line that ends this script, by `exit` or `set -e`.
setup_line='?'
setup_command=
# shellcheck disable=SC2317 # traps call it, and the next two
setup_place() {
  local command=${setup_command%%$'\n'*}
  echo "$setup_of: line $setup_line: \`${command:0:200}\`"
}
# shellcheck disable=SC2317
setup_note() {
  if [[ $- != *e* ]]; then # else it ends this script, and is named then
    echo "note: $(setup_place) returned $1" >&2
  fi
}
# shellcheck disable=SC2317
setup_ended() {
  local place
  place=$(setup_place)
  setup_over
  [ -z "${stop_signal:-}" ] || setup_failed "$place was ended by SIG$stop_signal" "$1"
  setup_failed "$place ended with status $1" "$1"
}
# setup_over: this shell as it was before those lines, but for what they exported.
setup_over() {
  at_exit=leave
  trap - DEBUG ERR
  trap '"$at_exit" $?' EXIT
  IFS=$' \t\n'
  set +fux
  set -eo pipefail
  cd "$run_dir"
}
at_exit=setup_ended
set +eo pipefail
trap 'setup_note $?' ERR
setup_of=job.setup
setup_before=$LINENO
trap '[ "$LINENO" -le "$setup_before" ] || setup_line=$((LINENO - setup_before - 1)) setup_command=$BASH_COMMAND' DEBUG
module load apptainer
trap - DEBUG
setup_over
set -u
export PYTHONNOUSERSITE=1 PYTHONUNBUFFERED=1
export OMP_NUM_THREADS=8

begin_attempt

# ---- allocation ----------------------------------------------------------------------------------
# What Cobalt gave us.
hosts=$(awk 'NF && !seen[$1]++ { print $1 }' "${COBALT_NODEFILE:-/nonexistent}") || fail "no node file at ${COBALT_NODEFILE:-COBALT_NODEFILE}"
allocated=$(wc -l <<<"$hosts")
[ "$allocated" -eq 2 ] || fail "the job has $allocated nodes, but was made for 2"
master_addr=${hosts%%$'\n'*}
# The time limit as it really is, where this node can ask: qsub's command line may have changed it.
limit=$(timeout 20 qstat --header WallTime "$COBALT_JOBID" 2>/dev/null | sed -nE 's/^ *([0-9]+:[0-9]{2}:[0-9]{2}) *$/\1/p') || limit=
limit=$(awk -F: 'NF { for (i = 1; i <= NF; i++) s = s * 60 + $i; print s }' <<<"$limit")
[ -z "$limit" ] || deadline=$((began + limit))
port_seed=$COBALT_JOBID
echo "$deadline" >"attempts/$attempt/end_at" || true
record started "on $HOSTNAME"

export HPC_AMP_WORLD_SIZE=8 HPC_AMP_NNODES=2 HPC_AMP_PPN=4
export HPC_AMP_ATTEMPT=$attempt
export HPC_AMP_OUTCOME_FILE="$run_dir/attempts/$attempt/outcome.json"
# The run saves and stops before the scheduler ends it, with or without a signal.
export HPC_AMP_STOP_AT=$((deadline - 120)) HPC_AMP_END_AT=$deadline
# Seconds between the scheduler's SIGTERM and its SIGKILL.
export HPC_AMP_GRACE=300
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
container=("$runtime" exec ${no_eval[@]+"${no_eval[@]}"}
  --nv
  -B /scratch
  -B /projects/data:/data:ro
  -B .
  -B /projects/me
  --pwd /projects/me/runs/golden/20261127-223455-kqzf
  "$image")
unset PYTHONPATH PYTHONHOME

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
  bash "$run_dir/src/hpc_amp/distributed/preflight.sh" "$run_dir/attempts/$attempt" "$image"
  /scratch
  /projects/data
  .
  /projects/me
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
# shellcheck disable=SC2016,SC2317 # run_child calls it; under torchrun, each node expands a part
launch() {
  exec mpirun -n "$HPC_AMP_WORLD_SIZE" --hostfile "attempts/$attempt/hosts" --map-by ppr:4:node --bind-to none "${carried[@]}" \
    "${container[@]}" "$python" "${program[@]}" </dev/null
}
status=143
if ! ended_from_outside; then
  status=0
  run_child launch_pid launch || status=$?
fi

# ---- outcome -------------------------------------------------------------------------------------
if superseded; then
  echo "attempt $attempt ended: attempt $((attempt + 1)) has taken the run over"
  exit "$status"
fi
# At its time limit a job gets the same signal as when it is deleted, and the ranks may end by it before
# this script has got its own.
[ "$(date +%s)" -lt "$deadline" ] || stop_signal=LIMIT
# The job says how it ended in a file, since some launchers hide exit codes.
outcome=$(sed -nE 's/.*"outcome" *: *"(finished|checkpointed|failed)".*/\1/p' "$HPC_AMP_OUTCOME_FILE" 2>/dev/null) || outcome=
cause=$(sed -n 's/.*"cause": "\([A-Z]*\)".*/\1/p' "$HPC_AMP_OUTCOME_FILE" 2>/dev/null) || cause=
echo "attempt $attempt ended: ${outcome:-failed} (status $status)"

# The job writes its summary itself, unless it is your own program, or died.
if [ ! -e summary.json ]; then
  printf '{"outcome": "%s", "name": "%s", "data": null, "synthetic": null, "accuracy": null, "images_per_second": null, "world_size": %s, "nodes": %s, "precision": null, "loss_scale": null, "skipped_steps": null, "steps": null, "seconds": %s}\n' \
    "${outcome:-failed}" golden 8 2 "$SECONDS" >summary.json || true
elif [ -z "$outcome" ] || [ "$outcome" = failed ]; then
  sed -i '0,/"outcome": "[a-z]*"/s//"outcome": "failed"/' summary.json || true
fi
[ "$outcome" = finished ] || [ "$status" -ne 0 ] || status=1

# terminated: whether only the ranks were told to terminate, which is how preemption begins. Your
# own program does not say what made it stop.
terminated() { [ "$cause" = TERMINATED ] || { [ -z "$cause" ] && preempted; }; }

case $outcome in
  finished)
    record finished ""
    end 0
    ;;
  checkpointed)
    if [ "$(count cancelled)" -gt 0 ]; then
      end 0
    elif ended_from_outside; then
      # If it was cancelled, it shall not start again.
      if starts_again; then
        record requeued "saved at SIG$stop_signal"
      else
        record terminated "saved at SIG$stop_signal"
      fi
      end 75
    elif [ "$(count stopping)" -gt 0 ]; then
      record checkpointed "a stop was asked for"
      end 75
    elif [ "$stop_signal" != LIMIT ] && terminated; then
      # It does not count as a restart: it may come any number of times.
      another_unless_stuck preempted "the ranks were terminated"
    elif [ -e "attempts/$attempt/stop" ] && [ -z "$stop_signal" ]; then
      record checkpointed "a stop was asked for"
      end 75
    elif [ "$(count continued)" -ge 10 ]; then
      record checkpointed "job.max_restarts reached"
      end 75
    fi
    another_unless_stuck continued "stopped at a checkpoint"
    ;;
  *)
    [ "$(count cancelled)" -eq 0 ] || end "$status"
    why="exit status $status"
    [ "$stop_signal" != LIMIT ] || why="the time limit was reached ($why)"
    come_back "$why"
    if ended_from_outside || [ "$(count stopping)" -gt 0 ] || [ "$(count retried)" -ge 1 ]; then
      record_failure "$why"
      end "$status"
    fi
    another_unless_stuck retried "$why"
    ;;
esac
