# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# The state of the run: state.jsonl and checkpoints.

# record STATE REASON [JOB_ID]: append a line to state.jsonl. If the disk is full, the line is lost, and the
# script continues.
record() {
  local reason=${2//\\/\\\\}
  reason=${reason//\"/\\\"}
  printf '{"time": %s, "state": "%s", "attempt": %s, "job_id": "%s", "reason": "%s"}\n' \
    "$(date +%s)" "$1" "$attempt" "${3:-$job_id}" "${reason//[[:cntrl:]]/?}" >>state.jsonl || true
}

# count STATE: print how often STATE was recorded since the run was last submitted.
count() {
  { cat state.jsonl 2>/dev/null || true; } | awk -v state="\"state\": \"$1\"" \
    '/"state": "submitted"/ { n = 0 } index($0, state) { n++ } END { print n + 0 }'
}

# newest_step: print the step of the newest checkpoint, or 0.
newest_step() {
  { find checkpoints -maxdepth 1 -regex 'checkpoints/step-[0-9]+' 2>/dev/null || true; } |
    awk -F - '$NF > newest { newest = $NF } END { print newest + 0 }'
}
