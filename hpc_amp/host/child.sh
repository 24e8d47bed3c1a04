# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# run_child VARIABLE COMMAND ...: run a function that ends with `exec`, and return its exit status.
# VARIABLE is its process id meanwhile, and `pass_on` gets a signal that came just before it was known.
# `wait` would do, if bash 5.2 did not lose the end of a child that comes together with a signal. So a
# shell that no signal ends runs the child in its foreground, and tells its status through a pipe.
run_child() {
  local variable=$1 answers output before=$stop_signal status=
  shift
  exec {output}>&1
  exec {answers}< <(
    trap : HUP INT TERM USR1 USR2
    status=0
    (
      echo "$BASHPID"
      exec >&"$output" {output}>&-
      "$@"
    ) || status=$?
    echo "$status"
  )
  exec {output}>&-
  read -r "${variable?}" <&"$answers" || true
  # One that came earlier would end a launcher that does not listen yet.
  [ "$stop_signal" = "$before" ] || pass_on "$stop_signal"
  read -r status <&"$answers" || true
  exec {answers}<&-
  printf -v "$variable" ''
  return "${status:-137}" # the shell beside this one was killed
}
