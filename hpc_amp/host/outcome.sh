# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Sourced by run.sh after the end of the launcher: determines the outcome of the attempt, and what follows.
if superseded; then
  say "attempt $attempt ended: attempt $((attempt + 1)) has taken the run over"
  exit "$status"
fi
# At its time limit, a job gets the same signal as when it is deleted. The ranks may end by this signal
# before the script receives it, so the clock decides.
[ "${job[limited]}" = no ] || ! out_of_time || stop_signal=LIMIT
# The ranks write the outcome to a file, because some launchers hide exit statuses.
outcome=$(sed -nE 's/.*"outcome" *: *"(finished|checkpointed|failed)".*/\1/p' "$HPC_AMP_OUTCOME_FILE" 2>/dev/null) || outcome=
# A program of the user's that wrote no file: 0 means finished, and 75 stopped at a checkpoint. Launchers
# treat 75 as a crash, so several ranks create the file `stopped` and exit with 0.
if [ "${job[program]}" = own ] && [ -z "$outcome" ]; then
  case $status in
    0) [ -e "attempts/$attempt/stopped" ] && outcome=checkpointed || outcome=finished ;;
    75) outcome=checkpointed ;;
  esac
fi
cause=$(sed -n 's/.*"cause": "\([A-Z]*\)".*/\1/p' "$HPC_AMP_OUTCOME_FILE" 2>/dev/null) || cause=
say "attempt $attempt ended: ${outcome:-failed} (status $status)"

# A task writes its summary itself, unless it was killed. A program of the user's does not.
[ "${job[program]}" = task ] || rm -f summary.json
if [ ! -e summary.json ]; then
  printf '{"outcome": "%s", "name": "%s", "data": null, "synthetic": null, "metrics": null, "best": null, "samples_per_second": null, "world_size": %s, "nodes": %s, "precision": null, "loss_scale": null, "skipped_steps": null, "steps": null, "seconds": %s}\n' \
    "${outcome:-failed}" "${job[name]}" "$HPC_AMP_WORLD_SIZE" "${job[nodes]}" "$SECONDS" >summary.json || true
elif [ -z "$outcome" ] || [ "$outcome" = failed ]; then
  sed -i '0,/"outcome": "[a-z]*"/s//"outcome": "failed"/' summary.json || true
fi
[ "$outcome" = finished ] || [ "$status" -ne 0 ] || status=1

# terminated: whether the ranks got a SIGTERM, as at the beginning of a preemption, and this script did not.
# A program of the user's does not report why it stopped.
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
      # The job may have been cancelled, so the script does not continue the run itself.
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
      # A preemption does not count as a restart: the number of preemptions is not limited.
      another_unless_stuck preempted "the ranks were terminated"
    elif [ -e "attempts/$attempt/stop" ] && [ -z "$stop_signal" ]; then
      record checkpointed "a stop was asked for"
      end 75
    elif [ "$(count continued)" -ge "${job[max_restarts]}" ]; then
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
    if ended_from_outside || [ "$(count stopping)" -gt 0 ] || [ "$(count retried)" -ge "${job[retries]}" ]; then
      record_failure "$why"
      end "$status"
    fi
    another_unless_stuck retried "$why"
    ;;
esac
