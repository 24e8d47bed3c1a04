# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# The lines of `setup` run as in a script of their own: a line that fails ends nothing by itself. The
# log names it, and also the line that ends this script, by `exit` or `set -e`.

# clean_environment: no leftovers of the login shell that would reach the ranks.
clean_environment() {
  unset PYTHONPATH PYTHONHOME PYTHONSTARTUP LC_ALL RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT
}

# Variables of the script that have a value before those lines, which may use the names for something else.
setup_names=(run_dir job_id attempt outcome status launch_pid own keeper began deadline)

# setup_begins OF LINE: the lines after LINE, `$LINENO` of this call, are the setup of OF.
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
  # What these two run must not change `$_`, which people use: `mkdir -p X && cd "$_"`.
  trap 'setup_note $? "$_"' ERR
  # It stands in one line: `$LINENO` counts its lines, too.
  trap 'setup_last=$_; [ "$LINENO" -le "$setup_before" ] || setup_line=$((LINENO - setup_before)) setup_command=$BASH_COMMAND; : "$setup_last"' DEBUG
}

# setup_ends: this shell as it was before those lines, but for what they exported. `library` defines its
# functions again.
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
  if [[ $- != *e* ]]; then # else it ends this script, and is named then
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
