# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Functions for scripts that make several runs, one after the other.
stop_signal=
run_pid=

# pass_on SIGNAL: forward a signal to the present run, which saves and ends. No further run begins.
# shellcheck disable=SC2317 # traps call it
pass_on() {
  stop_signal=$1
  [ -z "$run_pid" ] || kill -s "$1" "$run_pid" 2>/dev/null || true
}
for name in USR1 USR2 TERM INT; do
  # shellcheck disable=SC2064 # the name is expanded now
  trap "pass_on $name" "$name"
done

# has_finished RUN_DIR: whether the run has finished.
has_finished() { grep -q '"state": "finished"' "$1/state.jsonl" 2>/dev/null; }

# not_tried RUN_DIR REASON: record in the run's state.jsonl that it was skipped.
not_tried() {
  echo "$1: not tried: $2"
  printf '{"time": %(%s)T, "state": "failed", "attempt": 0, "reason": "not tried: %s"}\n' \
    -1 "$2" >>"$1/state.jsonl"
}

# launch RUN_DIR: run the launch script of a run, and return its exit status.
launch() {
  run_child run_pid launch_script "$1"
}

# launch_script RUN_DIR: become the launch script of a run.
# shellcheck disable=SC2317 # run_child calls it
launch_script() {
  exec bash "$1/launch.sh" </dev/null >>"$1/logs/job.log" 2>&1
}
