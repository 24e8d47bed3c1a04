# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Sourced by a launch script before the lines of `setup`: defines all functions and prepares the shell.
# Needs `run_dir` and the settings of the script in `job`:
#
#   name                                    name of the job
#   scheduler launcher container            names of these parts
#   program                                 task, or own: a program of the user's
#   nodes ranks_per_node cpus_per_rank step_cpus
#   walltime stop_margin grace launch_timeout     in seconds
#   max_restarts retries                    how often the run continues, and how often a failure is retried
#   limited                                 no: the scheduler does not end jobs at their time limit
#   forward_USR1 ...                        the signal to send to the launcher for a signal to this script
#   ask_grace preflight mpi address         see run.sh
#   python binaries container_by_step       see container.sh
set -eo pipefail
umask "${HPC_AMP_UMASK:-$(umask)}" # set by schedulers whose jobs do not have the user's umask
cd "$run_dir"
trap : USR1 USR2 # a warning of the time limit must not end this script before its handlers are installed

job_id=unknown
attempt=0
outcome=
status=2
stop_signal=
launch_pid=
own=
keeper=
printf -v began '%(%s)T' -1
job_began=${HPC_AMP_JOB_BEGAN:-$began} # earlier in a job that makes several runs (campaign.sh)
deadline=$((job_began + job[walltime]))

# library: define all functions. Called again after `setup`, whose lines may define the same names.
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

# setup_failed MESSAGE: record that a line of `setup` has ended this script.
setup_failed() {
  begin_attempt
  fail "$1" "$1"
}
# A signal ends `setup`. The code after `setup` checks `stop_signal`.
trap 'stop_signal=TERM; [ "$at_exit" = leave ] || exit 143' TERM
trap 'stop_signal=INT; [ "$at_exit" = leave ] || exit 130' INT

scheduler_begins
clean_environment
