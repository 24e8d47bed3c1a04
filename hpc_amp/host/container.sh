# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Sourced before the launch: finds out how a command runs inside the image. Afterwards the array
# `container` has the words before such a command, `python` is the Python inside, and the array
# `program` is what that runs as a rank. Needs from the script `job` and, with an image, `image` and
# the arrays `container_options` and `bind_sources`.
python=${job[python]}
program=("$run_dir/src" --job "$run_dir/job.json")
container=()
container_says=
container_image=
container_binds=()

# container_program: the first of job[binaries] that this node has, as `runtime`.
container_program() {
  local binary
  runtime=
  for binary in ${job[binaries]}; do
    ! runtime=$(command -v "$binary") || break
  done
  [ -n "$runtime" ] || fail "no ${job[binaries]// / or } on $HOSTNAME: load its module in job.setup"
}

# container_paths: the image and the binds as paths that every node has to have.
container_paths() {
  local source
  [ -r "$image" ] || fail "the image $image is not readable on $HOSTNAME"
  container_image=$image
  container_binds=(${bind_sources[@]+"${bind_sources[@]}"})
  [ "${job[preflight]}" != yes ] || return 0 # which looks on every node
  for source in ${bind_sources[@]+"${bind_sources[@]}"}; do
    [ -e "$source" ] || fail "$source is to be bound, but not here"
  done
}

# container_environment: variables that would reach from this node into the image.
container_environment() {
  export TMPDIR=/tmp HPC_AMP_CONTAINER=1
  unset PYTHONPATH PYTHONHOME
}

# leave_container: for a runtime whose containers may outlive a launch that failed.
leave_container() { :; }

# shellcheck source=/dev/null
source "$run_dir/src/hpc_amp/host/containers/${job[container]}.sh"
enter_container
