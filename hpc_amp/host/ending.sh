# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# The end of an attempt.

# The file of a scheduler may replace these functions.
# starts_again: whether the scheduler has decided to start this job again.
starts_again() { return 1; }
# may_start_again: whether the scheduler may start this job again after a SIGTERM, without announcing it.
may_start_again() { return 1; }
# preempted: whether this job is being preempted, and has only the grace time left.
preempted() { return 1; }
# scheduler_turn: exit if this job has nothing to do.
scheduler_turn() { :; }
# scheduler_ends: clean up if no attempt follows this one.
scheduler_ends() { :; }
# ask_grace: print the seconds between SIGTERM and SIGKILL, if the scheduler reports them.
ask_grace() { :; }

# outlast_ranks: wait until no process of this attempt is left on this node, and kill those that are still
# there after the grace time or shortly before the time limit, while another attempt can still be arranged.
# They are found by their environment, since a container may have process numbers of its own; the variable is
# only in what was started for the ranks.
outlast_ranks() {
  local left until=$((SECONDS + HPC_AMP_GRACE)) waits=no
  while :; do
    left=$(env -u HPC_AMP_OUTCOME_FILE grep -lzxF "HPC_AMP_OUTCOME_FILE=$HPC_AMP_OUTCOME_FILE" \
      /proc/[0-9]*/environ 2>/dev/null) || true
    [ -n "$left" ] || return 0
    [ "$waits" = yes ] || say "the launcher was killed: waiting up to $HPC_AMP_GRACE s for the end of its ranks"
    waits=yes
    # shellcheck disable=SC2086 # the numbers are words
    { [ "$SECONDS" -lt "$until" ] && ! out_of_time 15; } || kill -s KILL ${left//[!0-9$'\n']/} 2>/dev/null || true
    sleep 0.5
  done
}

# out_of_time [SECONDS]: whether the deadline is reached, or in SECONDS.
out_of_time() {
  local now
  printf -v now '%(%s)T' -1
  [ "$now" -ge $((deadline - ${1:-0})) ]
}

# end STATUS: exit; no attempt follows.
end() {
  scheduler_ends
  exit "$1"
}

# another_attempt STATE REASON: record the end of this attempt, and continue the run in the next one.
another_attempt() {
  record "$1" "$2"
  leave
  go_on
  # go_on has returned, so the run could not be continued.
  [ "$outcome" = checkpointed ] || exit "$status"
  exit 75
}

# another_unless_stuck STATE REASON: the same, but fail if the last two attempts made no checkpoint.
another_unless_stuck() {
  # Checkpoints are compared by time, not by step: a damaged one may have a higher step than a new one.
  local before=attempts/$((attempt - 1))/from made
  if [ "${job[program]}" = task ] && [ "$(count started)" -ge 2 ] && [ -e "$before" ]; then
    made=$(find checkpoints -maxdepth 1 -regex 'checkpoints/step-[0-9]+' -newer "$before" 2>/dev/null) || made=
    if [ -z "$made" ]; then
      record failed "no progress in 2 attempts: still at step $(newest_step); the cause is in the log"
      end "$status"
    fi
  fi
  another_attempt "$1" "$2"
}

# ended_from_outside: whether the job is being ended by a signal. The signal does not show whether the job
# was cancelled or will be started again.
ended_from_outside() { [ "$stop_signal" = TERM ] || [ "$stop_signal" = INT ]; }

# come_back REASON: exit if the scheduler has taken the nodes away and starts the job again. The attempt
# has not failed then.
come_back() {
  if starts_again; then
    record requeued "$1"
    exit "$status"
  elif ! ended_from_outside && preempted; then
    another_attempt preempted "$1"
  fi
}

# record_failure REASON: record a failure, which is final unless the scheduler may start this job again.
record_failure() {
  if ended_from_outside && may_start_again; then
    record killed "$1"
  else
    record failed "$1"
  fi
}

# fail MESSAGE [REASON]: exit because of an error of the launch, not of the training. Nothing is recorded
# before this job has an attempt: another job may be running the run.
fail() {
  local reason=${2:-the launch script could not start the job, see the log}
  say "hpc-amp: $1" >&2
  if [ "$attempt" -gt 0 ]; then
    [ "$(count cancelled)" -eq 0 ] || end 2 # the cancellation is the cause
    come_back "$reason"
    record_failure "$reason"
  fi
  end 2
}
