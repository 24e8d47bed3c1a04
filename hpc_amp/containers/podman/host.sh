# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Podman, and NERSC's podman-hpc around it: a container for each rank. Needs `image`,
# `container_options`, job[binaries] and job[gpu].

# enter_container: find the program, and make the array `container`.
enter_container() {
  local binary runtime='' version known
  for binary in ${job[binaries]}; do
    ! runtime=$(command -v "$binary") || break
  done
  [ -n "$runtime" ] || fail "no ${job[binaries]// / or } on $HOSTNAME: load its module in job.setup"
  export USER=${USER:-$(id -un)} # podman-hpc asks for it
  export TMPDIR=/tmp HPC_AMP_CONTAINER=1
  unset PYTHONPATH PYTHONHOME
  version=$("$runtime" --version) || fail "$runtime does not run on $HOSTNAME"
  # `images` looks into all storage that `run` uses, also into podman-hpc's squashed images.
  known=$("$runtime" images --quiet "$image") || fail "$runtime cannot list images on $HOSTNAME"
  [ -n "$known" ] || fail "$binary has no image $image on $HOSTNAME: see $binary images, and pull it once before"
  container_says="container: $binary ($version), $image"
  container_image= # no file
  container_binds=(${bind_sources[@]+"${bind_sources[@]}"})

  # The ranks of a node share its network, shared memory and process ids. No rank pulls an image, and
  # no second copy of the output is kept. The host's search path for libraries means nothing inside.
  container=("$(command -v env)" -u LD_LIBRARY_PATH "$runtime" run --rm --interactive --pull=never
    --network=host --ipc=host --pid=host --log-driver=none --env-host
    "--label=hpc-amp=$USER.${job_id:-none}.${attempt:-0}")
  if [ -t 0 ] && [ -t 1 ]; then container+=(--tty); fi # a session at a terminal
  if [ "${job[gpu]:-no}" = yes ]; then
    case $binary in
      podman-hpc) container+=(--gpu) ;;
      *) container+=(--device=nvidia.com/gpu=all) ;; # from the node's CDI specification
    esac
  fi
  container+=("${container_options[@]}" "$image")
  python=${job[python]}
  program=("$run_dir/src" --job "$run_dir/job.json")
}
