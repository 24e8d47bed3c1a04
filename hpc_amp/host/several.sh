# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Sourced by the script of a job that makes several runs, one after the other. Needs `run_dir`, the folder
# of one of the runs, whose `src` has the host code, and the settings of the script in `job`:
#
#   scheduler          name
#   tasks_per_node     processes that the launcher starts on each node
#   limit              seconds after which no run has time left, or none
#   group              what the runs of a group have in common, for messages: a point, a precision
#   checkpoints        keep, or drop: nobody resumes the runs
set -u
umask "${HPC_AMP_UMASK:-$(umask)}" # where the scheduler gives jobs another one than the user's
# shellcheck source=exit.sh
source "$run_dir/src/hpc_amp/host/exit.sh" || exit 2
leave() { :; }
# shellcheck source=child.sh
source "$run_dir/src/hpc_amp/host/child.sh" || exit 2
# shellcheck source=in_turn.sh
source "$run_dir/src/hpc_amp/host/in_turn.sh" || exit 2

# fail MESSAGE: what keeps the runs from starting.
fail() {
  echo "hpc-amp: $1" >&2
  exit 2
}

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
source "$run_dir/src/hpc_amp/host/schedulers/${job[scheduler]}.sh" || exit 2

declare -A gave_up=()
longest=0

# run GROUP NODES RUN_DIR: a run on the first NODES nodes, or on `all`. Where a run has failed, no other of
# its group is tried, and none where the longest before would not fit into the time left. A job that is
# started again makes those runs that have not finished.
run() {
  local status=0 begin=$SECONDS left
  ! has_finished "$3" || return 0
  [ -z "$stop_signal" ] || return 0
  if [ -n "${gave_up[$1]:-}" ]; then
    not_tried "$3" "this ${job[group]} failed before"
    return 0
  fi
  if [ "${job[limit]}" != none ]; then
    left=$((job[limit] - SECONDS))
    if [ "$left" -lt "$longest" ]; then
      not_tried "$3" "$left s of the job were left, and the longest run before took $longest s"
      return 0
    fi
  fi
  echo "$1: $3"
  [ "$2" = all ] || use_first_nodes "$2"
  launch "$3" || status=$?
  [ "$longest" -ge $((SECONDS - begin)) ] || longest=$((SECONDS - begin))
  if [ "$status" -ne 0 ]; then
    gave_up[$1]=yes
    echo "$1 failed (status $status)"
  fi
  [ "${job[checkpoints]}" = keep ] || rm -rf "$3/checkpoints"
}

# end_runs: end this script, with 0 where all runs have ended well.
end_runs() {
  [ -z "$stop_signal" ] || exit 75
  [ -z "${gave_up[*]:-}" ] || exit 1
  exit 0
}
