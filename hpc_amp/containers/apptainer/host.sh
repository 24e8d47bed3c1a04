# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Apptainer and Singularity, whose `exec` has the same options as far as we use them. Needs `image`,
# `container_options`, `bind_sources` and job[binaries].

# enter_container: find the program, and make the array `container`.
enter_container() {
  local binary runtime flavour no_eval source
  for binary in ${job[binaries]}; do
    ! runtime=$(command -v "$binary") || break
  done
  [ -n "$runtime" ] || fail "no ${job[binaries]// / or } on $HOSTNAME: load its module in job.setup"
  [ -r "$image" ] || fail "the image $image is not readable on $HOSTNAME"
  # A program of either name may be either: ask it. All but the oldest evaluate words as shell unless
  # they are told not to: Apptainer since 1.1, SingularityCE since 3.10.
  flavour=$("$runtime" --version) || fail "$runtime does not run on $HOSTNAME"
  no_eval=(--no-eval)
  case $flavour in
    "apptainer version 1.0"* | "singularity version "* | singularity-*" version 3."[0-9][!0-9]*) no_eval=() ;;
  esac
  container_says="container: $flavour, $image"
  container_image=$image
  container_binds=(${bind_sources[@]+"${bind_sources[@]}"})
  if [ "${job[preflight]}" != yes ]; then # which looks on every node
    for source in ${bind_sources[@]+"${bind_sources[@]}"}; do
      [ -e "$source" ] || fail "$source is to be bound, but not here"
    done
  fi
  export TMPDIR=/tmp HPC_AMP_CONTAINER=1
  # These would replace the image's search path for libraries. Inside, they are put in front of it.
  HPC_AMP_LD_LIBRARY_PATH=${APPTAINERENV_LD_LIBRARY_PATH:-${SINGULARITYENV_LD_LIBRARY_PATH:-}}
  [ -z "$HPC_AMP_LD_LIBRARY_PATH" ] || export HPC_AMP_LD_LIBRARY_PATH
  unset APPTAINERENV_LD_LIBRARY_PATH SINGULARITYENV_LD_LIBRARY_PATH PYTHONPATH PYTHONHOME
  container=("$runtime" exec ${no_eval[@]+"${no_eval[@]}"} "${container_options[@]}" "$image")
  python=${job[python]}
  program=("$run_dir/src" --job "$run_dir/job.json")
}
