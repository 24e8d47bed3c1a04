# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# How an attempt ends.

# What a scheduler's file replaces where it can say more.
# starts_again: whether the scheduler has decided to start this very job once more.
starts_again() { return 1; }
# may_start_again: whether the scheduler, after a SIGTERM, may start this job once more without saying
# so before.
may_start_again() { return 1; }
# preempted: whether this job has only the grace time left of a preemption.
preempted() { return 1; }
# scheduler_turn: end this script where the run has no need of it.
scheduler_turn() { :; }
# scheduler_ends: what is to be done where nothing comes after this attempt.
scheduler_ends() { :; }
# ask_grace: seconds between SIGTERM and SIGKILL, where the scheduler says.
ask_grace() { :; }

# end STATUS: nothing is to come after it.
end() {
  scheduler_ends
  exit "$1"
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
  if [ "${job[program]}" = task ] && [ "$(count started)" -ge 2 ] && [ -e "$before" ]; then
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
