# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# mpiexec of MPICH (hydra, also Intel's) and of Cray (PALS), which differ in how they place ranks.

host_mpi() { mpiexec --version; }

# prepare_launch: both take the environment along when told; PALS alone binds ranks to cores, unless job
# or site say how (job[bound]).
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
