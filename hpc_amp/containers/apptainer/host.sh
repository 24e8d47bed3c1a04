# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Apptainer and Singularity. The options that hpc-amp uses are the same.

enter_container() {
  local flavour no_eval
  container_program
  container_paths
  # The version shows which product the program is. `exec` evaluates words as shell code without
  # --no-eval, which Apptainer has since 1.1 and SingularityCE since 3.10. Older ones do not evaluate.
  flavour=$("$runtime" --version) || fail "$runtime does not run on $HOSTNAME"
  no_eval=(--no-eval)
  case $flavour in
    "apptainer version 1.0"* | "singularity version "* | singularity-*" version 3."[0-9][!0-9]*) no_eval=() ;;
  esac
  container_says="container: $flavour, $image"
  container_environment
  # These variables would replace the image's search path for libraries. hpc_amp.distributed.exec puts
  # their folders in front of it instead.
  HPC_AMP_LD_LIBRARY_PATH=${APPTAINERENV_LD_LIBRARY_PATH:-${SINGULARITYENV_LD_LIBRARY_PATH:-}}
  [ -z "$HPC_AMP_LD_LIBRARY_PATH" ] || export HPC_AMP_LD_LIBRARY_PATH
  unset APPTAINERENV_LD_LIBRARY_PATH SINGULARITYENV_LD_LIBRARY_PATH
  container=("$runtime" exec ${no_eval[@]+"${no_eval[@]}"} "${container_options[@]}" "$image")
}
