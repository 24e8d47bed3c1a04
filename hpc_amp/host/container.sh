# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Sourced before the launch: determines how a command is run in the image. Afterwards the array
# `container` has the words before such a command, `python` is the interpreter in the container, and the
# array `program` has its arguments for a rank. Needs from the script `job` and, with an image, `image`
# and the arrays `container_options` and `bind_sources`.
python=${job[python]}
program=("$run_dir/src" --job "$run_dir/job.json")
container=()
container_says=
container_image=
container_binds=()

# container_program: set `runtime` to the first of job[binaries] that this node has.
container_program() {
  local binary
  runtime=
  for binary in ${job[binaries]}; do
    ! runtime=$(command -v "$binary") || break
  done
  [ -n "$runtime" ] || fail "no ${job[binaries]// / or } on $HOSTNAME: load its module in job.setup"
}

# container_paths: set the paths of the image and the binds, which every node has to have.
container_paths() {
  local source
  [ -r "$image" ] || fail "the image $image is not readable on $HOSTNAME"
  container_image=$image
  container_binds=(${bind_sources[@]+"${bind_sources[@]}"})
  [ "${job[preflight]}" != yes ] || return 0 # the preflight checks them on every node
  for source in ${bind_sources[@]+"${bind_sources[@]}"}; do
    [ -e "$source" ] || fail "$source is to be bound into the container, but does not exist on $HOSTNAME"
  done
}

# container_environment: set and remove variables of this node that would reach into the container.
container_environment() {
  export TMPDIR=/tmp HPC_AMP_CONTAINER=1
  unset PYTHONPATH PYTHONHOME
}

# leave_container: called after a launch failed. Replaced by runtimes whose containers may still run then.
leave_container() { :; }

# shellcheck source=/dev/null
source "$run_dir/src/hpc_amp/host/containers/${job[container]}.sh"
enter_container
