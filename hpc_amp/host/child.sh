# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# run_child VARIABLE COMMAND ...: run a function that ends with `exec`, and return its exit status. While
# it runs, VARIABLE is its process id. A signal that arrived just before the id was known is given to
# `pass_on`.
#
# `wait` is not used: bash 5.2 loses the end of a child that comes together with a signal. Instead, a
# shell that ignores signals runs the child in its foreground, and returns its status through a pipe.
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
  # An earlier signal is not passed on: the launcher could not handle it yet, and would end.
  [ "$stop_signal" = "$before" ] || pass_on "$stop_signal"
  read -r status <&"$answers" || true
  exec {answers}<&-
  printf -v "$variable" ''
  return "${status:-137}" # without a status, the shell that ran the child was killed
}
