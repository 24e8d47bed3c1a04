# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# For schedulers without a requeue: a run goes on in another job. That is the next link of the chain that
# was submitted with this one (file `chain`, one job id a line), or a job that this one submits. A link
# looks for itself whether there is anything left to do.
#
# A scheduler's file defines `next_job_id` (sed's expression for the id in qsub's answer), `gone JOB_ID`
# and `own_jobs`.

# set_deadline START: for `read_allocation`. Makes seconds of `limit`, the time limit as the scheduler
# shows it (seconds, or parts with colons), and counts `deadline` from START, when the scheduler started
# the job, as `date` reads it: on a busy node that is seconds before this script.
set_deadline() {
  local start
  limit=$(awk -F: 'NF { for (i = 1; i <= NF; i++) s = s * 60 + $i; print s }' <<<"$limit")
  start=$(date -d "${1:-now}" +%s 2>/dev/null) || start=$began
  if [ "$start" -gt "$began" ] || [ "$start" -lt $((began - 600)) ]; then
    start=$began # the clocks of server and node differ
  fi
  [ -z "$limit" ] || deadline=$((start + limit))
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
      if [ "$(count retried)" -ge "${job[retries]}" ]; then
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

# submit_next: the script once more, as the job `next`. Where qsub does not tell an id, its answer may
# have been lost: the queue says whether the job is there. The queue is asked until it answers, and
# qsub up to twenty times, which takes eight minutes.
submit_next() {
  local said tries=0 pause
  stop_signal=
  while :; do
    said=$(qsub "$run_dir/launch.sh" 2> >(cut -c -300 | sed 's/^/> /')) || true
    echo "$said"
    next=$(sed -nE "$next_job_id" <<<"$said" | tail -n 1)
    [ -z "$next" ] || return 0
    tries=$((tries + 1))
    # A node that the server has never answered may not ask it.
    if [ -z "$limit" ] || [ "$tries" -ge 20 ] || is_refused "$said"; then
      return 0
    fi
    pause=$((tries * 5 < 30 ? tries * 5 : 30))
    while :; do
      sleep "$pause" &
      wait $! || true
      [ "$(count cancelled)" -eq 0 ] || end 0
      if superseded; then # it has begun already
        next=$(owner_of "$((attempt + 1))" job_id)
        return 0
      fi
      # Not beyond the end of this job, and not when it was deleted meanwhile.
      [ -z "$stop_signal" ] && [ "$(date +%s)" -lt $((deadline - 15)) ] || return 0
      ! next=$(find_next) || break
    done
    [ -z "$next" ] || return 0
  done
}

# find_next: the job in the queue that is this run's, has not begun yet and waits for no other one, if
# there is one. Fails where the queue does not answer.
find_next() {
  local found
  found=$(own_jobs) || return 1
  # Less those that had their turn, this one among them; a server may have several names.
  awk -F . 'NR == FNR { began[$1]; next } NF && !($1 in began)' \
    <(sed -nE 's/.*"job_id": "([^"]+)".*/\1/p' state.jsonl) - <<<"$found" | tail -n 1
}

# is_refused WHAT-QSUB-SAID: whether it would say the same again. A limit that has been reached may
# be so no longer.
is_refused() {
  ! grep -qiE 'has been reached|would exceed' <<<"$1" || return 1
  grep -qiE 'not found|no such|permission denied|unauthorized|bad uid|access from host|illegal|unknown (queue|resource)|directive error|violates|fault 10[0-9][0-9]|not executable|realistic range|filter .* failed' <<<"$1"
}

scheduler_turn() {
  [ "$(count cancelled)" -eq 0 ] || nothing_to_do "the run was cancelled"
  ! grep -qxF -e "$job_id" chain 2>/dev/null || turn_of_link
}

scheduler_ends() {
  # Not where this job may start again and go on in them.
  if ! ended_from_outside || ! may_start_again || [ "$(count cancelled)" -gt 0 ]; then
    drop_links
  fi
}

# go_on: have the script started again; returns where that cannot be had.
go_on() {
  # This job ends with 0 then: some schedulers start none that waits for one that did not.
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
