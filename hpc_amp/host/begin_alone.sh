# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Sourced by a script that is not a batch script before the lines of `setup`. Needs `run_dir`, `session` (the
# folder of a session; empty for anything else) and the settings of the script in `job` (see begin.sh);
# those of a session are also
#
#   records_status   yes: the exit status is written to `session`, because the scheduler's command may
#                    not return it
#   allocation       the variable with the job's id in an allocation
#   ends             yes: the scheduler ends the session after the walltime, counted from now
set -eo pipefail

# library: define all functions. Called again after `setup`, whose lines may define the same names.
# shellcheck disable=SC2317 # setup_ends calls it
library() {
  # shellcheck source=exit.sh
  source "$run_dir/src/hpc_amp/host/exit.sh"
  # shellcheck source=alone.sh
  source "$run_dir/src/hpc_amp/host/alone.sh"
  # shellcheck source=setup.sh
  source "$run_dir/src/hpc_amp/host/setup.sh"
  setup_names+=(session running)
}
library

# leave STATUS: write the exit status. If a signal ends this script while a program runs, there is none.
running=no
# shellcheck disable=SC2317 # `exit` calls it
leave() {
  if [ "${job[records_status]:-}" = yes ] && [ "$running" = no ]; then
    echo "$1" >"$session/status"
  fi
}

if [ -n "$session" ]; then
  cd "$run_dir"
  : >"$session/started"
fi
clean_environment
