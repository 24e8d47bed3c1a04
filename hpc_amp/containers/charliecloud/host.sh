# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Charliecloud's ch-run. Needs `image`, `container_options`, `bind_sources` and job[binaries].

# enter_container: find out how ch-run starts this image, and make the array `container`.
enter_container() {
  local runtime version said=
  runtime=$(command -v "${job[binaries]}") ||
    fail "no ${job[binaries]} on $HOSTNAME: load its module in job.setup"
  [ -r "$image" ] || fail "the image $image is not readable on $HOSTNAME"
  export USER=${USER:-$(id -un)} # ch-run ends at once without it, and a batch job may have none
  # Charliecloud binds this folder of the host to /tmp, and takes the variable away.
  export TMPDIR=/tmp HPC_AMP_CONTAINER=1
  unset PYTHONPATH PYTHONHOME
  version=$("$runtime" --version 2>&1) || fail "$runtime does not run on $HOSTNAME: $version"
  container_says="container: Charliecloud $version, $image"
  container_image=$image
  container_binds=(${bind_sources[@]+"${bind_sources[@]}"})
  container=("$runtime" --unset-env=LD_LIBRARY_PATH) # which names folders of the host

  if [ ! -d "$image" ]; then
    # ch-run itself serves the files of a SquashFS image, and a signal would end that while the rank
    # still saves. So signals are blocked in it; the rank takes them again (hpc_amp.distributed.exec).
    container=("$(command -v env)" "--block-signal=HUP,INT,TERM,USR1,USR2" "${container[@]}")
    "${container[0]}" "${container[1]}" true 2>/dev/null ||
      fail "a SquashFS image needs the env of coreutils 8.31 or newer on $HOSTNAME: use a folder instead"
  fi

  # The variables of the image are in a file that it need not have.
  # shellcheck disable=SC2016 # the shell in the image expands it
  said=$("${container[@]}" "$image" -- /bin/sh -c '[ ! -f /ch/environment ] || echo yes' 2>&1) ||
    fail "${job[binaries]} does not start $image on $HOSTNAME: $said"
  [ "$said" != yes ] || container+=(--set-env)
  container+=("${container_options[@]}")

  # A bind needs a folder in the image to bind to. Newer versions lay a writable file system over the
  # image; before, the folders have to be made in the image itself, which ch-run does with --write.
  if said=$("${container[@]}" "$image" -- true 2>&1); then
    container+=("$image" --)
  elif "${container[@]}" --write-fake "$image" -- true 2>/dev/null; then
    container+=(--write-fake "$image" --)
  elif [ -d "$image" ] && "${container[@]}" --write "$image" -- true 2>/dev/null &&
    "${container[@]}" "$image" -- true 2>/dev/null; then
    echo "$runtime has made folders in $image to bind to"
    container+=("$image" --)
  else
    fail "${job[binaries]} does not start $image on $HOSTNAME: $said"
  fi
  python=${job[python]}
  program=("$run_dir/src" --job "$run_dir/job.json")
}
