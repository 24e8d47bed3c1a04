# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# For schedulers that cannot requeue a job: a run continues in another job. This is the next job (link) of
# the chain that was submitted together with this one (file `chain`, one job id per line), or else a job
# that this one submits. Each link checks whether there is anything left to do.
#
# The file of a scheduler defines `next_job_id` (an expression of sed for the id in qsub's answer),
# `gone JOB_ID` and `own_jobs`.

# set_deadline START: for `read_allocation`. Converts `limit`, the time limit in the scheduler's form
# (seconds, or parts with colons), to seconds, and sets `deadline`. START is when the scheduler started the
# job, in a form that `date` reads. On a busy node, this script begins some seconds later.
set_deadline() {
  local start
  limit=$(awk -F: 'NF { for (i = 1; i <= NF; i++) s = s * 60 + $i; print s }' <<<"$limit")
  start=$(date -d "${1:-now}" +%s 2>/dev/null) || start=$job_began
  if [ "$start" -gt "$job_began" ] || [ "$start" -lt $((job_began - 600)) ]; then
    start=$job_began # the clocks of server and node differ too much
  fi
  [ -z "$limit" ] || deadline=$((start + limit))
}

nothing_to_do() {
  say "job $job_id has nothing to do: $1"
  exit 0
}

# turn_of_link: exit if this link of a chain has nothing to do.
turn_of_link() {
  case $(grep -v '"state": "queued"' state.jsonl | tail -n 1) in
    *"\"job_id\": \"$job_id\""*) ;; # this job was started again
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

# later_links: the jobs of the chain after this one.
later_links() { awk -v own="$job_id" 'found { print } $0 == own { found = 1 }' chain 2>/dev/null || true; }

# drop_links: delete the later links, if this node can. Otherwise each finds out that it has nothing to do.
drop_links() {
  local link
  while read -r link; do
    qdel "$link" </dev/null || true
  done < <(later_links)
}

# submit_next: submit the script again, and set `next` to the new job's id; empty if that fails. If qsub
# prints no id, its answer may have been lost, so the queue is searched for the job. The queue is queried
# until it answers, and qsub is tried up to twenty times, which takes eight minutes.
submit_next() {
  local said tries=0 pause
  stop_signal=
  while :; do
    said=$(env -u HPC_AMP_JOB_BEGAN -u HPC_AMP_FIRST_NODES -u HPC_AMP_CHECKED_NODES \
      qsub "$run_dir/launch.sh" 2> >(cut -c -300 | sed 's/^/> /')) || true
    say "$said"
    next=$(sed -nE "$next_job_id" <<<"$said" | tail -n 1)
    [ -z "$next" ] || return 0
    tries=$((tries + 1))
    # Without `limit`, the server has never answered this node, which may not have access to it.
    if [ -z "$limit" ] || [ "$tries" -ge 20 ] || is_refused "$said"; then
      return 0
    fi
    pause=$((tries * 5 < 30 ? tries * 5 : 30))
    while :; do
      sleep "$pause" &
      wait $! || true
      [ "$(count cancelled)" -eq 0 ] || end 0
      if superseded; then # the new job has already started
        next=$(owner_of "$((attempt + 1))" job_id)
        return 0
      fi
      # Give up shortly before the time limit, and if this job was deleted.
      [ -z "$stop_signal" ] && ! out_of_time 15 || return 0
      ! next=$(find_next) || break
    done
    [ -z "$next" ] || return 0
  done
}

# find_next: print the job of this run that is in the queue, has not begun and waits for no other job, if
# there is one. Fails if the queue does not answer.
find_next() {
  local found
  found=$(own_jobs) || return 1
  # Jobs that have already begun, such as this one, are left out. Ids are compared without the server's
  # name, which may differ.
  awk -F . 'NR == FNR { began[$1]; next } NF && !($1 in began)' \
    <(sed -nE 's/.*"job_id": "([^"]+)".*/\1/p' state.jsonl) - <<<"$found" | tail -n 1
}

# is_refused OUTPUT: whether another try is useless, given the output of qsub. A limit that was reached may
# not be reached later.
is_refused() {
  ! grep -qiE 'has been reached|would exceed' <<<"$1" || return 1
  grep -qiE 'not found|no such|permission denied|unauthorized|bad uid|access from host|illegal|unknown (queue|resource)|directive error|violates|fault 10[0-9][0-9]|not executable|realistic range|filter .* failed' <<<"$1"
}

scheduler_turn() {
  [ "$(count cancelled)" -eq 0 ] || nothing_to_do "the run was cancelled"
  ! grep -qxF -e "$job_id" chain 2>/dev/null || turn_of_link
}

scheduler_ends() {
  # Later links are kept if this job may start again and continue in them.
  if ! ended_from_outside || ! may_start_again || [ "$(count cancelled)" -gt 0 ]; then
    drop_links
  fi
}

# go_on: continue the run in another job, and exit. Returns if that is not possible.
go_on() {
  # The exit status is 0, because some schedulers start a waiting job only then.
  next=$(later_links | head -n 1)
  if [ -n "$next" ] && gone "$next"; then
    say "job $next, the next one of the chain, is not in the queue any more"
    drop_links # the other links wait for it, and would wait forever
    next=
  fi
  [ -n "$next" ] || submit_next
  if [ -n "$next" ]; then
    record queued "" "$next"
    say "continuing in job $next"
    exit 0
  fi
  record "${outcome:-failed}" "$HOSTNAME could not submit the next job"
}
