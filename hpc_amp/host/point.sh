# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Sourced by a task of a sweep: creates the run directory `run_dir` of its point, as `hpc-amp submit` does,
# if it is not complete yet. Needs from the script `fail MESSAGE`, `sweep_dir`, `point` (its number, with
# four digits), `run_dir` and the settings in `sweep`: array, scheduler, launch_script, own_code.
set -eo pipefail

# unpack_snapshot: unpack the code, which all tasks share. The first task does it.
unpack_snapshot() {
  local waited=0 own=.snapshot-$point
  while [ ! -e snapshot ] && ! mkdir .unpacking 2>/dev/null && [ "$waited" -lt 60 ]; do
    sleep 1
    waited=$((waited + 1))
  done
  # If the snapshot appeared between the two tests above, this task has created `.unpacking`.
  if [ ! -e snapshot ]; then
    # This task is the first one, or the task that began to unpack has died.
    { mkdir -p "$own" && tar -xf snapshot.tar -C "$own"; } || fail "its code cannot be unpacked"
    mv -T "$own" snapshot 2>/dev/null || rm -rf "$own"
  fi
  rmdir .unpacking 2>/dev/null || true
}

# make_run_dir: create the files of the run directory. launch.sh is created last; it marks the directory as
# complete.
make_run_dir() {
  local sweep_id=${sweep_dir##*/}
  [ ! -e launch.sh ] || return 0
  ln -sfn ../../snapshot/src src
  ln -sfn ../../config.yaml config.yaml
  if [ "${sweep[own_code]}" = yes ]; then
    rm -rf code .code
    { cp -a ../../snapshot/code .code && mv -T .code code; } || fail "its code cannot be copied"
  fi
  sed -n "$((10#$point + 1)){p;q}" ../../jobs.jsonl >job.json
  [ -s job.json ] || fail "jobs.jsonl has no line for it"
  sed "s|$sweep_id/points/0000|$sweep_id/points/$point|g" "../../${sweep[launch_script]}" >.launch.sh
  chmod +x .launch.sh
  mv .launch.sh launch.sh
}

# record_submission: record the submission, unless the same task was started before.
record_submission() {
  ! grep -qsF "\"array\": ${sweep[array]}," state.jsonl || return 0
  # In a subshell, because the launch script sources the scheduler's code itself.
  local job_id
  job_id=$(
    # shellcheck source=/dev/null
    source "$run_dir/src/hpc_amp/host/schedulers/${sweep[scheduler]}.sh"
    scheduler_begins >&2
    echo "$job_id"
  ) || fail "the scheduler's variables are not there"
  printf '{"time": %s, "state": "submitted", "array": %s, "scheduler": "%s"}\n{"time": %s, "state": "queued", "job_id": "%s"}\n' \
    "$(date +%s)" "${sweep[array]}" "${sweep[scheduler]}" "$(date +%s)" "$job_id" >>state.jsonl
}

cd "$sweep_dir"
unpack_snapshot
cd "$run_dir"
make_run_dir
record_submission
