# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# Sourced at the end of a launch script: runs one attempt, from its claim to its end. Needs from the script
# `job` (see begin.sh), the functions `launch`, which ends with `exec` of the launcher, and
# `on_each_node COMMAND ...`, and for a container the arrays `container_options` and `bind_sources`. These
# functions can use the arrays `container` (the words before a command that runs in the container) and
# `program` (Python's arguments for a rank), and the variables `python`, `hosts` and `attempt`.
set -u
begin_attempt

# ---- allocation ----------------------------------------------------------------------------------
master_addr=
read_allocation
# A run of a campaign may use only the first nodes of a job (campaign.sh).
[ -z "${HPC_AMP_FIRST_NODES:-}" ] || hosts=$(head -n "$HPC_AMP_FIRST_NODES" <<<"$hosts")
mapfile -t lines <<<"$hosts"
allocated=${#lines[@]}
[ "$allocated" -eq "${job[nodes]}" ] || fail "the job has $allocated nodes, but was made for ${job[nodes]}"
if [ -z "$master_addr" ]; then
  master_addr=${hosts%%$'\n'*}
  if [ -n "${job[address]:-}" ]; then
    # The node's name in the fast network. A node file may have full names.
    master_addr=${job[address]/\{host\}/${master_addr%%.*}}
  fi
fi
echo "$deadline" >"attempts/$attempt/end_at" || true
record started "on $HOSTNAME"

# ---- environment of the ranks --------------------------------------------------------------------
export PYTHONNOUSERSITE=1 PYTHONUNBUFFERED=1
export OMP_NUM_THREADS=${job[cpus_per_rank]}
export HPC_AMP_NNODES=${job[nodes]} HPC_AMP_PPN=${job[ranks_per_node]}
export HPC_AMP_WORLD_SIZE=$((job[nodes] * job[ranks_per_node]))
export HPC_AMP_ATTEMPT=$attempt HPC_AMP_RUN_DIR=$run_dir HPC_AMP_RESUMES=$((attempt - 1))
export HPC_AMP_OUTCOME_FILE="$run_dir/attempts/$attempt/outcome.json"
# The run saves and stops before the scheduler ends it, with or without a signal.
export HPC_AMP_STOP_AT=$((deadline - job[stop_margin])) HPC_AMP_END_AT=$deadline
# Seconds between the scheduler's SIGTERM and its SIGKILL.
export HPC_AMP_GRACE=${job[grace]}
if [ "${job[ask_grace]:-}" = yes ]; then
  grace=$(ask_grace) || grace=
  HPC_AMP_GRACE=${grace:-$HPC_AMP_GRACE}
  # The launcher may kill its ranks earlier.
  [ "$HPC_AMP_GRACE" -le "${job[longest_grace]:-$HPC_AMP_GRACE}" ] || HPC_AMP_GRACE=${job[longest_grace]}
fi
export MASTER_ADDR=$master_addr
# Above the range of ephemeral ports, and different for each job and attempt.
export MASTER_PORT=$((61000 + (port_seed * 13 + attempt) % 4536))
# Names that no image sets. An image's values of the names above would override these.
export HPC_AMP_MASTER_ADDR=$MASTER_ADDR HPC_AMP_MASTER_PORT=$MASTER_PORT HPC_AMP_JOB_ID=$job_id

# ---- container and launcher ----------------------------------------------------------------------
# shellcheck source=container.sh
source "$run_dir/src/hpc_amp/host/container.sh"
[ -z "$container_says" ] || say "$container_says"
prepare_launch() { :; }
# shellcheck source=../launchers/mpirun.sh
[ ! -e "$run_dir/src/hpc_amp/host/launchers/${job[launcher]}.sh" ] ||
  source "$run_dir/src/hpc_amp/host/launchers/${job[launcher]}.sh"
prepare_launch

# ---- checks before any rank starts ---------------------------------------------------------------
printf '%s\n' "$hosts" >"attempts/$attempt/nodes" || true
# Skipped if a run of the same job has just used these nodes (campaign.sh).
checked=${HPC_AMP_CHECKED_NODES:-0}
[ "$checked" != all ] || checked=$allocated
if [ "${job[preflight]}" = yes ] && [ "$checked" -lt "$allocated" ]; then
  # Every node checks itself for problems that would prevent the ranks from starting or communicating.
  # shellcheck disable=SC2016 # each node expands this for itself
  preflight=(bash -c '[ -r "$1" ] || { echo "hpc-amp: preflight: run.dir: $1 is not there on $(uname -n)" >&2; exit; }; exec bash "$@"'
    bash "$run_dir/src/hpc_amp/host/preflight.sh" "$run_dir/attempts/$attempt" "$container_image"
    ${container_binds[@]+"${container_binds[@]}"}
    --)
  inside=("${container[@]}" "$python" "${program[@]}" --preflight "$run_dir/attempts/$attempt")
  if [ "${job[container_by_step]:-}" = yes ]; then
    # The whole step runs in the container, so the checks outside of it are another step.
    on_each_node "${preflight[@]}" </dev/null || true
    if ! compgen -G "attempts/$attempt/preflight-*.json" >/dev/null; then
      # shellcheck source=outside.sh
      source "$run_dir/src/hpc_amp/host/outside.sh"
      HPC_AMP_OUTSIDE=$(outside_settings) || true
      export HPC_AMP_OUTSIDE
      said=$(on_each_node "${inside[@]}" 2>&1 </dev/null) || true
      [ -z "$said" ] || say "$said" >&2
      # If no program could start, the output of the step has the reason.
      # shellcheck disable=SC2016 # the inner shell expands it
      compgen -G "attempts/$attempt/preflight*.json" >/dev/null ||
        "${preflight[@]}" bash -c 'echo "$1"; exit 1' bash "$said" >/dev/null 2>&1
      unset HPC_AMP_OUTSIDE
    fi
  else
    on_each_node "${preflight[@]}" "${inside[@]}" </dev/null || true
  fi
  # The first node collects the reports of the others. If no program could start on it, the report of
  # another node may have the reason.
  verdict=$(sed -nE '/^ "failed": "(.+)",$/{s//\1/p;q;}' \
    "attempts/$attempt"/preflight.json "attempts/$attempt"/preflight-*.json 2>/dev/null) || true
  [ -e "attempts/$attempt/preflight.json" ] || verdict=${verdict:-"no answer from the first node, see the log"}
  [ -z "$verdict" ] ||
    fail "preflight: $verdict; no rank was started (launch.preflight=false leaves this check out)" "preflight: $verdict"
fi
if [ "${job[mpi]}" = yes ]; then
  # The program uses MPI: check first whether the ranks find each other through it.
  HPC_AMP_HOST_MPI=$(host_mpi 2>&1 | head -n 2 | tr '\n' ' ') || HPC_AMP_HOST_MPI=unknown
  export HPC_AMP_HOST_MPI
  program+=(--mpi-probe)
  (launch timeout --kill-after=10 "${job[launch_timeout]}") </dev/null ||
    fail "the ranks do not find each other through MPI, see above" "the ranks do not find each other through MPI"
  unset 'program[-1]'
fi

# ---- launch --------------------------------------------------------------------------------------
say "attempt $attempt of job $job_id: $HPC_AMP_WORLD_SIZE rank(s) on ${job[nodes]} node(s), first $master_addr:$MASTER_PORT, stops by $(printf '%(%F %T)T' "$HPC_AMP_STOP_AT")"
# ranks: start the launcher. Its process id is for `keep_alive`, which ends it if this script is killed.
ranks() {
  echo "$BASHPID" >"attempts/$attempt/launcher" || true
  launch
}
status=143
if ! ended_from_outside; then
  status=0
  run_child launch_pid ranks </dev/null || status=$?
fi
[ "$status" -eq 0 ] || leave_container || true
[ "$status" -ne 137 ] || outlast_ranks # a launcher that was killed has not waited for them
# shellcheck source=outcome.sh
source "$run_dir/src/hpc_amp/host/outcome.sh"
