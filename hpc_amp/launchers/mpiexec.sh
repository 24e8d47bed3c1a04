# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# mpiexec of MPICH and Intel MPI (hydra) and of Cray (PALS). They differ in the options that place ranks.

host_mpi() { mpiexec --version; }

# prepare_launch: write the file of hosts and set the options that pass on the environment. For PALS, they
# also bind ranks to cores, unless options of job or site do (job[bound]).
prepare_launch() {
  printf '%s\n' "$hosts" >"attempts/$attempt/hosts"
  case $(mpiexec --version 2>&1) in
    *"Open MPI"* | *OpenRTE* | *PRRTE*) fail "mpiexec is Open MPI's here: use launch.method=mpirun" ;;
    *HYDRA* | *"Intel(R) MPI"*) placement=(-genvall) ;;
    *) # PALS
      placement=(--envall)
      [ "${job[bound]:-}" = yes ] || placement+=(--cpu-bind depth --depth "${job[cpus_per_rank]}")
      ;;
  esac
}
