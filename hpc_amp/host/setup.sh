# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# The lines of `setup` run as in a script of their own: a line that fails does not end the script, but is
# named in the log. If a line ends the script, by `exit` or after `set -e`, the log names it too.

# clean_environment: remove variables of the login shell that would affect the ranks.
clean_environment() {
  unset PYTHONPATH PYTHONHOME PYTHONSTARTUP LC_ALL RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT
}

# Variables of this script that are saved before `setup` and restored afterwards, since its lines may use
# the same names.
setup_names=(run_dir job_id attempt outcome status launch_pid own keeper began deadline)

# setup_begins ORIGIN LINE: prepare for the lines after LINE, which is `$LINENO` of this call. They are the
# setup of ORIGIN.
setup_begins() {
  setup_of=$1
  setup_before=$2
  setup_line='?'
  setup_command=
  at_exit=setup_ended
  setup_values=()
  for setup_name in "${setup_names[@]}"; do
    setup_values+=("${!setup_name-}")
  done
  set +eo pipefail
  # These two traps must not change `$_`, which `setup` may use: `mkdir -p X && cd "$_"`.
  trap 'setup_note $? "$_"' ERR
  # This trap must be one line, because `$LINENO` would count its lines.
  trap 'setup_last=$_; [ "$LINENO" -le "$setup_before" ] || setup_line=$((LINENO - setup_before)) setup_command=$BASH_COMMAND; : "$setup_last"' DEBUG
}

# setup_ends: restore this shell's state after `setup`, except for exported variables.
setup_ends() {
  local number
  trap - DEBUG ERR
  IFS=$' \t\n'
  set +afmuvxCET
  set +o posix
  shopt -u failglob nocasematch nullglob
  for number in "${!setup_names[@]}"; do
    printf -v "${setup_names[number]}" %s "${setup_values[number]}"
  done
  library
  set -eo pipefail
  cd "$run_dir"
}

setup_place() {
  local command=${setup_command%%$'\n'*}
  echo "$setup_of: line $setup_line: \`${command:0:200}\`"
}

setup_note() {
  if [[ $- != *e* ]]; then # with `set -e`, the line ends this script, and setup_ended names it
    echo "note: $(setup_place) returned $1" >&2
  fi
}

setup_ended() {
  local place
  place=$(setup_place)
  setup_ends
  [ -z "${stop_signal:-}" ] || setup_failed "$place was ended by SIG$stop_signal" "$1"
  setup_failed "$place ended with status $1" "$1"
}
