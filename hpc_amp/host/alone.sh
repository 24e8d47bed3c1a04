# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# How a script ends that is no batch script: a session, or the Python of an executor.

# fail MESSAGE: what keeps the program from starting.
fail() {
  echo "hpc-amp: $1" >&2
  exit 2
}

# setup_failed WHAT STATUS: `setup` has ended this script.
setup_failed() {
  echo "hpc-amp: $1" >&2
  [ "$2" -ne 0 ] || exit 2
  exit "$2"
}
