# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Pyxis: srun itself enters the container, so the words before a command are options of srun.

enter_container() {
  # An image that begins with `/` is a file. Others are in registries, and each node imports them.
  [[ $image != /* ]] || container_paths
  container_says="container: Pyxis, $image"
  container_environment
  # These variables would replace options, and the host's libraries would replace the image's.
  unset "${!PYXIS_CONTAINER_@}" LD_LIBRARY_PATH
  # Enroot mounts the driver according to these variables. Those of the image do not count.
  export NVIDIA_VISIBLE_DEVICES=void
  if [ "${job[gpu]}" = yes ]; then
    NVIDIA_VISIBLE_DEVICES=all
    export NVIDIA_DRIVER_CAPABILITIES=${NVIDIA_DRIVER_CAPABILITIES:-compute,utility}
  fi
  container=(--container-image="$image" "${container_options[@]}")
  if [ -n "${session:-}" ]; then
    # The shell is a step itself, so the container is another step beside it.
    [ -n "${SLURM_JOB_ID:-}" ] || fail "Pyxis starts containers in jobs of Slurm only, and this shell is not in one"
    local step=(srun --overlap --nodes=1 --ntasks=1 --mpi=none --cpu-bind=none)
    [ -z "${SLURMD_NODENAME:-}" ] || step+=(--nodelist="$SLURMD_NODENAME")
    [ ! -t 0 ] || step+=(--pty)
    container=("${step[@]}" "${container[@]}")
  fi
}
