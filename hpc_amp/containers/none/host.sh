# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# No container: the software of the node.

enter_container() {
  container_says=
  container_image=
  container_binds=()
  container=(env) # runs what follows as it is
  python=${job[python]}
  program=("$run_dir/src" --job "$run_dir/job.json")
  [ -x "$(command -v "$python")" ] || fail "no Python at $python on $HOSTNAME"
}
