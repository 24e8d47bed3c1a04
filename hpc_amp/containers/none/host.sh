# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# No container: the software of the node.

enter_container() {
  container=(env) # runs the command unchanged
  [ -x "$(command -v "$python")" ] || fail "no Python at $python on $HOSTNAME"
}
