# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Attempts of a run. Only one runs at a time.
#
# The folder attempts/N is prepared under another name and renamed, which only one job can do, so it has
# its file `owner` from the beginning. `alive` is touched while this script runs. `ended` is written when
# no process of the attempt is left. A job that dies with its node writes no `ended`: the scheduler then
# shows whether it has ended or, if the scheduler does not answer, the age of `alive`.
heartbeat=3 # seconds between two touches of `alive`
quiet=10    # seconds without a touch after which a job that has ended has no processes left
lease=180   # seconds without a touch after which a job counts as ended if the scheduler does not know it

# owner_of N KEY: a value from the file `owner` of attempt N; empty if there is none.
owner_of() {
  sed -nE "s/.*\"$2\": \"?([^\",}]*).*/\1/p" "attempts/$1/owner" 2>/dev/null || true
}

# silence N: seconds since attempt N touched `alive`. Both times are the file server's.
silence() {
  touch "$own/alive"
  : <"attempts/$1/alive" || true # opening the file makes NFS fetch its attributes from the server
  echo $(($(stat -c %Y "$own/alive") - $(stat -c %Y "attempts/$1/alive" || echo 0)))
} 2>/dev/null

# give_way_to N: return when attempt N has ended. If it is still running, end this job.
give_way_to() {
  local owner host limit beat first_beat=
  owner=$(owner_of "$1" job_id)
  host=$(owner_of "$1" host)
  # If the owner is this job itself, the scheduler has ended its earlier start.
  while [ -n "$owner" ] && [ "$owner" != "$job_id" ] && [ ! -e "attempts/$1/ended" ]; do
    case $(job_state "$owner" "$host") in
      running) refuse "$1" ;;
      ended) limit=$quiet ;;
      *) limit=$lease ;;
    esac
    [ "$(silence "$1")" -lt "$limit" ] || return 0
    # A touch shows that the attempt runs, whatever the scheduler answers: it may hide other users' jobs.
    beat=$(stat -c %Y "attempts/$1/alive")
    [ "$beat" = "${first_beat:-$beat}" ] || refuse "$1"
    [ -n "$first_beat" ] ||
      say "job $owner on $host has not said that it has ended: waiting for a sign of life"
    first_beat=$beat
    sleep "$heartbeat"
    ! ended_from_outside || exit 143 # this job has no attempt yet, so nothing is recorded
  done
}

# refuse N: exit because another job is running attempt N. Nothing is recorded.
refuse() {
  say "hpc-amp: job $(owner_of "$1" job_id) on $(owner_of "$1" host) has been at work on this run since $(date -d "@$(owner_of "$1" time)" '+%F %T') (attempt $1); two at once would spoil it" >&2
  exit 2
}

# claim N: try to become the owner of attempt N. Success is read from the file `owner`: the status of `mv`
# is wrong if the answer of the file server got lost.
claim() {
  mv -T "$own" "attempts/$1" 2>/dev/null || true
  { [ "$(<"attempts/$1/owner")" = "$me" ]; } 2>/dev/null
}

# outlive N: wait for the end of attempt N, an earlier start of this job. It may still run on a node that
# only lost its daemon. It stops when it sees the folder of this attempt.
outlive() {
  local patience=$((SECONDS + lease)) waits=no
  while [ ! -e "attempts/$1/ended" ] && [ "$(silence "$1")" -lt "$quiet" ] && [ "$SECONDS" -lt "$patience" ]; do
    [ "$waits" = yes ] || say "attempt $1 was at work a moment ago: waiting for its end"
    waits=yes
    sleep 2
  done
}

# superseded: whether a later attempt exists, because this one was taken for dead.
superseded() { [ -e "attempts/$((attempt + 1))" ]; }

# keep_alive: touch `alive` until this script ends. Ignores the signals that all processes of a job get.
# If the script was killed, this ends the launcher, because nothing would record the end of the ranks.
keep_alive() {
  local self=$BASHPID stat parent pause launcher
  trap '' HUP INT TERM USR1 USR2
  exec {pause}<> <(:) # `read` waits on it; a child process `sleep` could outlive this process
  # The parent's number follows the name, in parentheses, and the state.
  while read -r stat <"/proc/$self/stat" && read -r _ parent _ <<<"${stat##*) }" && [ "$parent" = $$ ]; do
    ! superseded || kill -s TERM $$
    touch "attempts/$attempt/alive" || true # the file server may be away for some time
    read -r -t "$heartbeat" -u "$pause" _ || true
  done
  ! read -r launcher <"attempts/$attempt/launcher" || kill -s TERM "$launcher"
}

# leave: record that no process of this attempt is left.
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

# ranks_listen: whether all ranks handle signals. Each rank of a task writes its first heartbeat after it
# has installed its handlers; before, the default action of a signal would kill it. A program of the
# user's gets signals only if `launch.forward_signals` says so.
ranks_listen() {
  local signs
  [ "${job[program]}" = task ] || return 0
  signs=$(find "attempts/$attempt/heartbeat" -name 'rank-*' 2>/dev/null | wc -l) || true
  [ "$signs" -eq "$HPC_AMP_WORLD_SIZE" ]
}

# pass_on SIGNAL: ask the ranks to save and stop, by the stop file and, which is faster, by a signal to the
# launcher if it forwards one.
pass_on() {
  local sent
  stop_signal=$1
  touch "attempts/$attempt/stop" || true
  [ -n "$launch_pid" ] || return 0
  ! superseded || kill -s TERM "$launch_pid" 2>/dev/null || true
  [[ $1 != USR? ]] || ranks_listen || return 0
  sent=${job[forward_$1]:-}
  [ -z "$sent" ] || kill -s "$sent" "$launch_pid" 2>/dev/null || true
}

# turn: exit if this job has nothing to do after the attempts before it.
turn() {
  scheduler_turn
  # The run may have been cancelled while this job requested its next start.
  if [ "$(count cancelled)" -gt 0 ] && [ "$(owner_of "$newest" job_id)" = "$job_id" ]; then
    say "job $job_id has nothing to do: the run was cancelled"
    exit 0
  fi
  if [ "$(count stopping)" -gt 0 ] && [ "$(count finished)" -eq 0 ]; then
    say "a stop was asked for before job $job_id began: continue with hpc-amp resume"
    record checkpointed "a stop was asked for"
    end 75
  fi
}

# begin_attempt: claim the next attempt. From here on, this script records what happens.
begin_attempt() {
  mkdir -p attempts logs 2>/dev/null || fail "cannot write in $run_dir: no space, or no permission"
  own=attempts/.claim-$job_id-$$
  printf -v me '{"job_id": "%s", "host": "%s", "pid": %s, "time": %(%s)T}' "$job_id" "$HOSTNAME" $$ -1
  { mkdir -p "$own" && echo "$me" >"$own/owner" && touch "$own/alive"; } 2>/dev/null ||
    fail "cannot write in $run_dir/attempts: no space, or no permission"
  while :; do
    newest=$(highest attempts/)
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
    # shellcheck disable=SC2064 # the name is expanded now
    trap "pass_on $name" "$name"
  done
  [ "$newest" -eq 0 ] || outlive "$newest"
  newest_step >"attempts/$attempt/from" || true
}
