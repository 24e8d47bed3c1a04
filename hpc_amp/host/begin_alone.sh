# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Sourced by a script that is not a batch script before the lines of `setup`. Needs `run_dir`, `session` (the
# folder of a session; empty for anything else) and the settings of the script in `job` (see begin.sh);
# those of a session are also
#
#   watched      yes: nobody hands on its exit status, which is written to `session` then
#   allocation   the variable that has the job's id inside an allocation
#   ends         yes: the scheduler ends it after the walltime, counted from now
set -eo pipefail

# library: all functions. Once more after `setup`, whose lines may define some of the same names.
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

# leave STATUS: where a signal ends this script while something runs in it, there is no status.
running=no
# shellcheck disable=SC2317 # `exit` calls it
leave() {
  if [ "${job[watched]:-}" = yes ] && [ "$running" = no ]; then
    echo "$1" >"$session/status"
  fi
}

if [ -n "$session" ]; then
  cd "$run_dir"
  : >"$session/started"
fi
clean_environment
