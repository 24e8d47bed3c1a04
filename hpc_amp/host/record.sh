# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# The state of the run: state.jsonl and checkpoints.

# record STATE REASON [JOB_ID]: append a line to state.jsonl. If the disk is full, the line is lost, and the
# script continues.
record() {
  local reason=${2//\\/\\\\}
  reason=${reason//\"/\\\"}
  printf '{"time": %(%s)T, "state": "%s", "attempt": %s, "job_id": "%s", "reason": "%s"}\n' \
    -1 "$1" "$attempt" "${3:-$job_id}" "${reason//[[:cntrl:]]/?}" >>state.jsonl || true
}

# count STATE: print how often STATE was recorded since the run was last submitted.
count() {
  local line n=0
  while IFS= read -r line || [ -n "$line" ]; do
    [[ $line != *'"state": "submitted"'* ]] || n=0
    [[ $line != *"\"state\": \"$1\""* ]] || n=$((n + 1))
  done 2>/dev/null <state.jsonl || true
  echo "$n"
}

# highest PREFIX: print the highest number that follows PREFIX in the name of a file, or 0.
highest() {
  local path number highest=0
  for path in "$1"[0-9]*; do
    number=${path#"$1"}
    [[ $number == *[!0-9]* ]] || ((10#$number <= highest)) || highest=$((10#$number))
  done
  echo "$highest"
}

# newest_step: print the step of the newest checkpoint, or 0.
newest_step() { highest checkpoints/step-; }
