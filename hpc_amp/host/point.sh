# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# A run of a campaign: creates the run directory `run_dir` of a point, as `hpc-amp submit` does, if it is not
# complete yet. Needs from the script `fail MESSAGE`, `campaign_dir`, `point` (the name of the run directory:
# the number of the point, with `-2` for its second run), `run_dir`, `launch_script` and the settings in
# `campaign`: array, scheduler, own_code.

umask "${HPC_AMP_UMASK:-$(umask)}" # set by schedulers whose jobs do not have the user's umask

# unpack_snapshot WHO: unpack the code, which all jobs share. The first job does it.
unpack_snapshot() {
  local waited=0 own=.snapshot-$1
  cd "$campaign_dir" || fail "there is no folder $campaign_dir"
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
  local id=${campaign_dir##*/} first=${point%%-*} name
  [ ! -e launch.sh ] || return 0
  { ln -sfn ../../snapshot/src src && ln -sfn ../../config.yaml config.yaml; } ||
    fail "its run directory cannot be written"
  for name in git.json git.patch; do
    [ ! -e "../../$name" ] || ln -sfn "../../$name" "$name" || fail "its run directory cannot be written"
  done
  if [ "${campaign[own_code]}" = yes ]; then
    rm -rf code .code
    { cp -a ../../snapshot/code .code && mv -T .code code; } || fail "its code cannot be copied"
  fi
  sed -n "$((10#$first + 1)){s|$id/points/$first\b|$id/points/$point|g;p;q}" ../../jobs.jsonl >job.json
  [ -s job.json ] || fail "jobs.jsonl has no line for it"
  sed "s|$id/points/0000|$id/points/$point|g" "../../$launch_script" >.launch.sh ||
    fail "its launch script cannot be written"
  { chmod +x .launch.sh && mv .launch.sh launch.sh; } || fail "its launch script cannot be written"
}

# record_submission: record the submission, unless the same task was started before.
record_submission() {
  ! grep -qsF "\"array\": ${campaign[array]}," state.jsonl || return 0
  # In a subshell, because the launch script sources the scheduler's code itself.
  local job_id
  job_id=$(
    # shellcheck source=/dev/null
    source "$run_dir/src/hpc_amp/host/schedulers/${campaign[scheduler]}.sh"
    scheduler_begins >&2
    echo "$job_id"
  ) || fail "the scheduler's variables are not there"
  printf '{"time": %(%s)T, "state": "submitted", "array": %s, "scheduler": "%s"}\n{"time": %(%s)T, "state": "queued", "job_id": "%s"}\n' \
    -1 "${campaign[array]}" "${campaign[scheduler]}" -1 "$job_id" >>state.jsonl ||
    fail "its state.jsonl cannot be written"
}

# make_point: all of it.
make_point() {
  unpack_snapshot "$point"
  cd "$run_dir" || fail "its run directory is gone"
  make_run_dir
  record_submission
}
