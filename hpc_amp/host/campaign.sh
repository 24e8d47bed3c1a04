# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Sourced by the script of a job that makes several runs, one after the other. Needs `run_dir`, the folder
# of one of the runs, whose `src` has the host code, and the settings of the script in `job`:
#
#   scheduler          name
#   tasks_per_node     processes that the launcher starts on each node
#   limit              seconds that this job has for all runs, or none
#   group              the kind of a group of runs, for messages: point, precision
#   checkpoints        keep, or drop if the runs are never resumed
set -u
umask "${HPC_AMP_UMASK:-$(umask)}" # set by schedulers whose jobs do not have the user's umask
# shellcheck source=exit.sh
source "$run_dir/src/hpc_amp/host/exit.sh" || exit 2
leave() { :; }
# shellcheck source=child.sh
source "$run_dir/src/hpc_amp/host/child.sh" || exit 2
# shellcheck source=in_turn.sh
source "$run_dir/src/hpc_amp/host/in_turn.sh" || exit 2

# fail MESSAGE: exit because the runs cannot start.
fail() {
  echo "hpc-amp: $1" >&2
  exit 2
}

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
source "$run_dir/src/hpc_amp/host/schedulers/${job[scheduler]}.sh" || exit 2

declare -A gave_up=()
longest=0

# run GROUP NODES RUN_DIR: make a run on the first NODES nodes, or on `all`. It is skipped if a run of its
# group has failed, or if the remaining time of the job is less than the longest run before took. If the
# job is started again, finished runs are skipped.
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

# end_runs: exit with 0 if all runs have finished, with 75 after a signal, else with 1.
end_runs() {
  [ -z "$stop_signal" ] || exit 75
  [ -z "${gave_up[*]:-}" ] || exit 1
  exit 0
}
