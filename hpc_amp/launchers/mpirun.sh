# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Open MPI's mpirun.

host_mpi() { mpirun --version; }

# prepare_launch: write the file of hosts with their slots, because a node file may have one line for each
# host or for each process; and name the variables for the ranks, because Open MPI passes on only named
# ones. All exported variables are named, as with srun, except those of this node or this shell and those
# that launchers set themselves.
prepare_launch() {
  local name
  awk -v slots="${job[ranks_per_node]}" '{ print $1 " slots=" slots }' <<<"$hosts" >"attempts/$attempt/hosts"
  carried=()
  for name in $(compgen -e); do
    case $name in
      OMPI_* | ORTE_* | PRTE_* | PMI* | SLURM_* | SSH_* | XDG_*) ;;
      HOSTNAME | PWD | OLDPWD | SHLVL | _ | TERM | DISPLAY) ;;
      *) carried+=(-x "$name") ;;
    esac
  done
}
