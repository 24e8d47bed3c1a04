# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# The exit status of a script is its own.

# Somebody has POSIXLY_CORRECT in the environment. In that mode bash refuses a function of this name, and
# `read` ends at a signal.
set +o posix

# In a login shell `exit` runs ~/.bash_logout, which can change the exit status. So this shell is
# replaced by one that only exits. `at_exit` is called before, with the status.
exit() {
  local status=${1:-$?}
  [ "$BASHPID" = $$ ] || builtin exit "$status" # of a subshell
  trap - EXIT
  "$at_exit" "$status"
  # A scheduler may take some statuses for an order.
  case " ${reserved_statuses:-} " in *" $status "*) status=1 ;; esac
  trap '' HUP INT TERM USR1 USR2 # it has no traps, and would die by a signal that comes now
  exec /bin/sh -c 'exit "$1"' sh "$status"
}
at_exit=leave
trap '"$at_exit" $?' EXIT
