# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Sourced by the script of a job that makes several runs of a campaign, one after the other. Needs
# `campaign_dir`, the functions of point.sh, `fail MESSAGE`, the settings in `campaign` (see point.sh) and those
# of the job in `job`:
#
#   tasks_per_node     processes that the launcher starts on each node
#   limit              seconds after which no run has time left, or none
#   checkpoints        keep, or drop: nobody resumes the runs
set -u
umask "${HPC_AMP_UMASK:-$(umask)}" # where the scheduler gives jobs another one than the user's
run_dir=$campaign_dir/snapshot # whose `src` the host code of schedulers looks into
host=$run_dir/src/hpc_amp/host
# shellcheck source=exit.sh
source "$host/exit.sh" || exit 2
leave() { :; }
# shellcheck source=child.sh
source "$host/child.sh" || exit 2
# shellcheck source=in_turn.sh
source "$host/in_turn.sh" || exit 2
# For files of this job alone.
{ mkdir -p "$campaign_dir/job-${campaign[array]}" && cd "$campaign_dir/job-${campaign[array]}"; } ||
  fail "cannot write in $campaign_dir"

# use_first_nodes N: the runs from now on get the first N nodes of this job. A scheduler's file replaces
# this where its own programs count on variables that it has set for the whole job. Here: the launch
# scripts of the runs take no more nodes from the list that `read_allocation` gives (run.sh).
# shellcheck disable=SC2317 # a file that replaces it is not always the one that shellcheck reads
use_first_nodes() { export HPC_AMP_FIRST_NODES=$1; }

# use_first_lines N VARIABLE: for a scheduler whose programs read the nodes in a file that VARIABLE names:
# let it name one that has the first N nodes alone. A node may stand there once a process. A job without
# such a file has one node, or the launch script of the run says that the file is missing.
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

# run SETTING NODES NAME LAUNCH_SCRIPT: a run on the first NODES nodes, or on `all`, in the run directory NAME.
# Where a run has failed, no other one with its SETTING is tried, and none where the longest before would not
# fit into the time left. A job that is started again makes those runs that have not finished.
run() {
  local status=0 begin=$SECONDS left run_dir=$campaign_dir/points/$3
  ! has_finished "$run_dir" || return 0
  [ -z "$stop_signal" ] || return 0
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

# make_run NAME LAUNCH_SCRIPT: the run directory of a run. In a shell of its own.
make_run() {
  local point=$1 launch_script=$2 run_dir=$campaign_dir/points/$1
  mkdir -p "$run_dir/logs" "$run_dir/attempts" || fail "cannot write in $campaign_dir"
  make_point
}

# end_runs: end this script, with 0 where all runs have ended well.
end_runs() {
  [ -z "$stop_signal" ] || exit 75
  [ -z "${gave_up[*]:-}" ] || exit 1
  exit 0
}
