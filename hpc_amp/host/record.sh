# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# The state of the run, for `hpc-amp status` and for whoever reads it later.

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
