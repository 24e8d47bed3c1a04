# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Open MPI's mpirun.

host_mpi() { mpirun --version; }

# prepare_launch: hosts with their slots, since a node file may name a host once or once a process; and
# the variables of the ranks. They get what srun would give them: all that this script exported, `setup`
# included. Left out is what belongs to this node or this shell, and what the launchers set themselves.
# Open MPI hands on no variable by itself: every one is named.
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
