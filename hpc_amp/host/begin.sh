# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Sourced by a launch script before the lines of `setup`: defines what ends the script and what it
# records, and prepares the shell. Needs `run_dir` and the settings of the script in `job`:
#
#   name scheduler launcher container       names of the run and of the parts that it is made of
#   program                                 task, or own: a program of the user's
#   nodes ranks_per_node cpus_per_rank step_cpus
#   walltime stop_margin grace launch_timeout     in seconds
#   max_restarts retries                    how often a run goes on, and how often a failure is tried again
#   limited                                 no: nothing ends the job at its time limit
#   forward_USR1 ...                        the signal to send to the launcher, where it is to get one
#   ask_grace preflight mpi address         see run.sh
#   python binaries container_by_step       see container.sh
set -eo pipefail
umask "${HPC_AMP_UMASK:-$(umask)}" # where the scheduler gives jobs another one than the user's
cd "$run_dir"
trap : USR1 USR2 # a warning before this script listens must not end it: the clock says the same

job_id=unknown
attempt=0
outcome=
status=2
stop_signal=
launch_pid=
own=
keeper=
began=$(date +%s)
deadline=$((began + job[walltime]))

# library: all functions. Once more after `setup`, whose lines may define some of the same names.
library() {
  # shellcheck source=exit.sh
  source "$run_dir/src/hpc_amp/host/exit.sh"
  # shellcheck source=child.sh
  source "$run_dir/src/hpc_amp/host/child.sh"
  # shellcheck source=record.sh
  source "$run_dir/src/hpc_amp/host/record.sh"
  # shellcheck source=ending.sh
  source "$run_dir/src/hpc_amp/host/ending.sh"
  # shellcheck source=attempt.sh
  source "$run_dir/src/hpc_amp/host/attempt.sh"
  # shellcheck source=setup.sh
  source "$run_dir/src/hpc_amp/host/setup.sh"
  # shellcheck source=/dev/null
  source "$run_dir/src/hpc_amp/host/schedulers/${job[scheduler]}.sh"
}
library

# setup_failed WHAT: a line of `setup` has ended this script.
setup_failed() {
  begin_attempt
  fail "$1" "$1"
}
# A signal ends `setup`; what comes after it sees that.
trap 'stop_signal=TERM; [ "$at_exit" = leave ] || exit 143' TERM
trap 'stop_signal=INT; [ "$at_exit" = leave ] || exit 130' INT

scheduler_begins
clean_environment
