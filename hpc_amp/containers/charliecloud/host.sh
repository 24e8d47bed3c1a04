# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Charliecloud's ch-run.

enter_container() {
  local version said unblock=()
  container_program
  container_paths
  container_environment # ch-run binds the host's TMPDIR to /tmp, and removes the variable
  export USER=${USER:-$(id -un)} # ch-run needs it, and a batch job may not have it
  version=$("$runtime" --version 2>&1) || fail "$runtime does not run on $HOSTNAME: $version"
  container_says="container: Charliecloud $version, $image"
  container=("$runtime" --unset-env=LD_LIBRARY_PATH) # it names folders of the host

  if [ ! -d "$image" ]; then
    # ch-run itself serves the files of a SquashFS image, so a signal must not end it while the rank still
    # saves. Signals are blocked in it. In the container, Python unblocks them before it becomes the
    # command, which may also be torchrun, not a rank.
    unblock=("$python" -I -S -c
      'import os, signal, sys; signal.pthread_sigmask(signal.SIG_SETMASK, ()); os.execvp(sys.argv[1], sys.argv[1:])')
    container=("$(command -v env)" "--block-signal=HUP,INT,TERM,USR1,USR2" "${container[@]}")
    "${container[@]:0:2}" true 2>/dev/null ||
      fail "a SquashFS image needs the env of coreutils 8.31 or newer on $HOSTNAME: use a folder"
  fi

  # An image may have a file of variables, which ch-run reads with --set-env.
  said=$("${container[@]}" "$image" -- /bin/sh -c '[ ! -f /ch/environment ] || echo yes' 2>&1) ||
    fail "$runtime does not start $image on $HOSTNAME: $said"
  [ "$said" != yes ] || container+=(--set-env)
  container+=("${container_options[@]}")

  # A bind needs a folder in the image. Newer versions put a writable file system in memory over the image
  # (--write-fake); older ones have to create the folders in the image (--write).
  if said=$("${container[@]}" "$image" -- true 2>&1); then
    container+=("$image" --)
  elif "${container[@]}" --write-fake "$image" -- true 2>/dev/null; then
    container+=(--write-fake "$image" --)
  elif [ -d "$image" ] && "${container[@]}" --write "$image" -- true 2>/dev/null &&
    "${container[@]}" "$image" -- true 2>/dev/null; then
    say "$runtime has created folders for binds in $image"
    container+=("$image" --)
  else
    fail "$runtime does not start $image on $HOSTNAME: $said"
  fi
  container+=(${unblock[@]+"${unblock[@]}"})
}
