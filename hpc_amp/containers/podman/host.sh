# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Podman, and NERSC's extension podman-hpc. Each rank has a container of its own.

enter_container() {
  local version known
  container_program
  container_binds=(${bind_sources[@]+"${bind_sources[@]}"})
  container_environment
  export USER=${USER:-$(id -un)} # podman-hpc needs it
  version=$("$runtime" --version) || fail "$runtime does not run on $HOSTNAME"
  # `images` lists all images that `run` can use, also podman-hpc's squashed ones.
  known=$("$runtime" images --quiet "$image") || fail "$runtime does not list images on $HOSTNAME"
  [ -n "$known" ] || fail "$runtime has no image $image on $HOSTNAME: pull it once before (see $runtime images)"
  container_says="container: $runtime ($version), $image"

  # The ranks of a node share its network, shared memory and process ids. No rank pulls an image, and
  # Podman stores no copy of the output. The host's search path for libraries is invalid in the container.
  container_label=hpc-amp=${job_id:-$$}.${attempt:-0}
  container=("$(command -v env)" -u LD_LIBRARY_PATH "$runtime" run --rm --interactive --pull=never
    --network=host --ipc=host --pid=host --log-driver=none --env-host "--label=$container_label")
  if [ -t 0 ] && [ -t 1 ]; then container+=(--tty); fi # a session at a terminal
  case ${job[gpu]}:${runtime##*/} in
    yes:podman-hpc) container+=(--gpu) ;;
    yes:*) container+=("--device=nvidia.com/gpu=all") ;; # from the node's CDI specification
  esac
  container+=("${container_options[@]}" "$image")
}

# leave_container: remove this attempt's containers. A container whose client was killed still runs.
leave_container() {
  # shellcheck disable=SC2016 # each node expands this for itself
  on_each_node bash -c 'left=$("$1" ps --quiet --filter "label=$2"); [ -z "$left" ] || "$1" rm --force --time=0 $left' \
    bash "$runtime" "$container_label" </dev/null
}
