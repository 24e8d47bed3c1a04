# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Apptainer and Singularity, whose `exec` has the same options as far as we use them.

enter_container() {
  local flavour no_eval
  container_program
  container_paths
  # A program of either name may be either: ask it. All but the oldest evaluate words as shell unless
  # they are told not to: Apptainer since 1.1, SingularityCE since 3.10.
  flavour=$("$runtime" --version) || fail "$runtime does not run on $HOSTNAME"
  no_eval=(--no-eval)
  case $flavour in
    "apptainer version 1.0"* | "singularity version "* | singularity-*" version 3."[0-9][!0-9]*) no_eval=() ;;
  esac
  container_says="container: $flavour, $image"
  container_environment
  # These would replace the image's search path for libraries. Inside, they are put in front of it.
  HPC_AMP_LD_LIBRARY_PATH=${APPTAINERENV_LD_LIBRARY_PATH:-${SINGULARITYENV_LD_LIBRARY_PATH:-}}
  [ -z "$HPC_AMP_LD_LIBRARY_PATH" ] || export HPC_AMP_LD_LIBRARY_PATH
  unset APPTAINERENV_LD_LIBRARY_PATH SINGULARITYENV_LD_LIBRARY_PATH
  container=("$runtime" exec ${no_eval[@]+"${no_eval[@]}"} "${container_options[@]}" "$image")
}
