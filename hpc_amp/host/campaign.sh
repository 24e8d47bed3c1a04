# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Sourced by the script of a job that makes several runs of a campaign, one after the other. Needs
# `campaign_dir`, the functions of point.sh, `fail MESSAGE`, the settings in `campaign` (see point.sh) and those
# of the job in `job`:
#
#   tasks_per_node     processes that the launcher starts on each node
#   limit              seconds that this job has for all runs, or none
#   checkpoints        keep, or drop if the runs are never resumed
set -u
# For the time limit of the runs, which is that of this job.
printf -v now '%(%s)T' -1
export HPC_AMP_JOB_BEGAN=$((now - SECONDS))
run_dir=$campaign_dir/snapshot # whose `src` has the host code of schedulers
host=$run_dir/src/hpc_amp/host
# shellcheck source=exit.sh
source "$host/exit.sh" || exit 2
leave() { :; }
# shellcheck source=child.sh
source "$host/child.sh" || exit 2
# shellcheck source=in_turn.sh
source "$host/in_turn.sh" || exit 2
# For files of this job.
{ mkdir -p "$campaign_dir/job-${campaign[array]}" && cd "$campaign_dir/job-${campaign[array]}"; } ||
  fail "cannot write in $campaign_dir"

# use_first_nodes N: let the following runs use only the first N nodes of this job. Default: their launch
# scripts use the first N nodes of the list of `read_allocation` (run.sh). The file of a scheduler replaces
# this function if the scheduler's programs read the nodes from variables or files of the whole job.
# shellcheck disable=SC2317 # shellcheck may read a scheduler's file that replaces it
use_first_nodes() { export HPC_AMP_FIRST_NODES=$1; }

# use_first_lines N VARIABLE: for schedulers with a node file whose path is in VARIABLE. Write a file with
# the first N nodes only, and set VARIABLE to it. A node file may have a line for each process. If there is
# no node file, the job has one node, or the launch script of the run reports that the file is missing.
use_first_lines() {
  local number=$1 variable=$2
  all_nodes=${all_nodes:-${!variable:-}}
  [ -n "$all_nodes" ] || return 0
  awk -v most="$number" '!($1 in seen) { if (++n > most) exit; seen[$1] } { print }' "$all_nodes" >"nodes-$number" ||
    fail "the nodes of the job cannot be read from $all_nodes"
  export "$variable=$PWD/nodes-$number"
}
# shellcheck source=/dev/null
source "$host/schedulers/${campaign[scheduler]}.sh" || exit 2

declare -A gave_up=()
longest=0
checked=0

# run SETTING NODES NAME LAUNCH_SCRIPT: make a run on the first NODES nodes, or on `all`, in the run directory
# NAME. It is skipped if a run with its SETTING has failed, or if the remaining time of the job is less than
# the longest run before took. If the job is started again, runs that have finished or failed are skipped.
run() {
  local status=0 begin=$SECONDS left run_dir=$campaign_dir/points/$3
  ! has_finished "$run_dir" || return 0
  [ -z "$stop_signal" ] || return 0
  if has_failed "$run_dir"; then
    gave_up[$1]=yes
    return 0
  fi
  (make_run "$3" "$4") || {
    gave_up[$1]=yes
    return 0
  }
  if [ -n "${gave_up[$1]:-}" ]; then
    not_tried "$run_dir" "a run with the same settings failed before"
    return 0
  fi
  if [ "${job[limit]}" != none ]; then
    left=$((job[limit] - SECONDS))
    if [ "$left" -lt "$longest" ]; then
      not_tried "$run_dir" "$left s of the job were left, and the longest run before took $longest s"
      return 0
    fi
  fi
  echo "$1: $run_dir"
  [ "$2" = all ] || use_first_nodes "$2"
  [ -z "$stop_signal" ] || return 0 # it came meanwhile
  # The nodes that a run before has used need no second preflight.
  export HPC_AMP_CHECKED_NODES=$checked
  launch "$run_dir" || status=$?
  [ "$longest" -ge $((SECONDS - begin)) ] || longest=$((SECONDS - begin))
  if [ "$status" -ne 0 ]; then
    gave_up[$1]=yes
    echo "$1 failed (status $status)"
  elif [ "$2" = all ]; then
    checked=all
  elif [ "$checked" != all ] && [ "$2" -gt "$checked" ]; then
    checked=$2
  fi
  [ "${job[checkpoints]}" = keep ] || rm -rf "$run_dir/checkpoints"
}

# has_failed RUN_DIR: whether the run has failed in this job, before the job was started again. A run that was
# not tried has not failed: there may be enough time now.
has_failed() {
  grep -qsF "\"array\": ${campaign[array]}," "$1/state.jsonl" || return 1
  tail -n 1 "$1/state.jsonl" | grep -F '"state": "failed"' | grep -qvF '"reason": "not tried: '
}

# make_run NAME LAUNCH_SCRIPT: the run directory of a run. In a shell of its own.
make_run() {
  local point=$1 launch_script=$2 run_dir=$campaign_dir/points/$1
  mkdir -p "$run_dir/logs" "$run_dir/attempts" || fail "cannot write in $campaign_dir"
  make_point
}

# end_runs: exit with 0 if all runs have finished, with 75 after a signal, else with 1.
end_runs() {
  [ -z "$stop_signal" ] || exit 75
  [ -z "${gave_up[*]:-}" ] || exit 1
  exit 0
}
