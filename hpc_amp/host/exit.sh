# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Replaces `exit`, so that no file of the user's shell can change the exit status of a script, and has `say`.

# A user may have set POSIXLY_CORRECT. In this mode bash refuses a function with the name `exit`, and a
# signal ends `read`.
set +o posix

# In a login shell, `exit` runs ~/.bash_logout, which can change the exit status. Therefore this shell is
# replaced by one that only exits. Before that, the function named by `at_exit` is called with the status.
exit() {
  local status=${1:-$?}
  [ "$BASHPID" = $$ ] || builtin exit "$status" # this is a subshell
  trap - EXIT
  "$at_exit" "$status"
  # Some exit statuses are commands to a scheduler.
  case " ${reserved_statuses:-} " in *" $status "*) status=1 ;; esac
  trap '' HUP INT TERM USR1 USR2 # a signal would kill the new shell, which has no traps
  exec /bin/sh -c 'exit "$1"' sh "$status"
}
at_exit=leave

# say TEXT: print a line for the log. On a full disk the line is lost, and the script goes on.
say() { printf '%s\n' "$1" || true; }

trap '"$at_exit" $?' EXIT
