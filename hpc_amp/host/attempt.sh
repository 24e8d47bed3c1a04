# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Attempts: one at a time.
#
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
    ! ended_from_outside || exit 143 # there is nothing to record yet
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

# keep_alive: the sign of life. Deaf to signals that all processes of a job get. Where the script was
# killed, the ranks must not go on with nobody to say so.
keep_alive() {
  local self=$BASHPID pause launcher
  trap '' HUP INT TERM USR1 USR2
  exec {pause}<> <(:) # to wait without a child that would outlive this one
  while [ "$(awk '/^PPid:/ { print $2 }' "/proc/$self/status")" = $$ ]; do
    ! superseded || kill -s TERM $$
    touch "attempts/$attempt/alive" || true # the file server may come back
    read -r -t "$heartbeat" -u "$pause" _ || true
  done
  ! read -r launcher <"attempts/$attempt/launcher" || kill -s TERM "$launcher"
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

# ranks_listen: whether a warning ends no rank. Each rank of a task writes its first sign of life once
# it handles signals; until then the signal's default action would kill it. What a program of the
# user's does is not known, and `launch.forward_signals` says that it wants them.
ranks_listen() {
  local signs
  [ "${job[program]}" = task ] || return 0
  signs=$(find "attempts/$attempt/heartbeat" -name 'rank-*' 2>/dev/null | wc -l) || true
  [ "$signs" -eq "$HPC_AMP_WORLD_SIZE" ]
}

# pass_on SIGNAL: the ranks look for the stop file; launchers that forward signals are faster.
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

# turn: whether it is this job's, after what the ones before came to.
turn() {
  scheduler_turn
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
