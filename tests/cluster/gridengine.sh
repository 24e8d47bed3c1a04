# shellcheck shell=bash
# Grid Engine, beside Slurm on the same nodes. Sourced by up, down, status and env, after lib.sh.
#
# The programs are Debian's, unpacked into $GE and not installed: /usr/bin/qsub would also be the qsub
# that tests of other schedulers find, and the packages bring a mail server along. $GE is laid out as
# the programs expect SGE_ROOT to be: they find their libraries from where they are.
GE=$STATE/gridengine
GE_CELL=$GE/default
GE_SLOTS=8 # of a node, and those that a job gets on each of its nodes
GE_PACKAGES=(gridengine-master gridengine-exec gridengine-client gridengine-common libjemalloc2)
GE_DAEMONS=("${NODES[@]/#/ge-}" ge-master) # as $RUN calls them
GE_ENVIRONMENT=(SGE_ROOT="$GE" SGE_CELL=default SGE_QMASTER_PORT=6444 SGE_EXECD_PORT=6445)

# ge COMMAND...: with Grid Engine's environment.
ge() { env "${GE_ENVIRONMENT[@]}" PATH="$(echo "$GE"/bin/lx-*):$PATH" "$@"; }

gridengine_download() {
  local tmp=$STATE/tmp/gridengine arch file
  rm -rf "$tmp"
  mkdir -p "$tmp/debs"
  (cd "$tmp/debs" && apt-get -q -o APT::Sandbox::User=root download "${GE_PACKAGES[@]}")
  for file in "$tmp"/debs/*.deb; do dpkg -x "$file" "$tmp/tree"; done
  arch=$(sh "$tmp/tree/usr/share/gridengine/util/arch")
  mkdir -p "$tmp/root"/{bin,lib,utilbin}
  mv "$tmp/tree/usr/share/gridengine/util" "$tmp/root/util"
  mv "$tmp/tree/usr/lib/gridengine" "$tmp/root/bin/$arch"
  ln -s "../bin/$arch" "$tmp/root/utilbin/$arch"
  mkdir "$tmp/root/lib/$arch"
  mv "$tmp/tree/usr/lib"/*-linux-gnu*/libjemalloc.so.2 "$tmp/root/bin/$arch"/lib*.so "$tmp/root/lib/$arch/"
  mv "$tmp/tree/usr/share/gridengine/default-configuration" "$tmp/root/"
  rm -rf "$GE"
  mv "$tmp/root" "$GE"
  rm -rf "$tmp"
}

# gridengine_link: Debian's programs look for their spooling library in this folder only.
gridengine_link() {
  if ldd "$GE"/bin/lx-*/sge_execd | grep 'not found'; then
    "$(dirname "${BASH_SOURCE[0]}")/../install-packages" libhwloc15 libtirpc3 libgssapi-krb5-2 libmunge2
  fi
  [[ -e /usr/lib/gridengine ]] || ln -sfn "$(echo "$GE"/lib/lx-*)" /usr/lib/gridengine
}

gridengine_unlink() {
  [[ $(readlink /usr/lib/gridengine 2>/dev/null) != "$GE"/* ]] || rm -f /usr/lib/gridengine
}

# gridengine_cell LAST_JOB: a new cell, without queues.
gridengine_cell() {
  local common=$GE_CELL/common spool=$GE_CELL/spool bin
  bin=$(echo "$GE"/bin/lx-*)
  rm -rf "$GE_CELL"
  mkdir -p "$common" "$spool/qmaster/job_scripts" "$GE_CELL/conf"
  echo head >"$common/act_qmaster"
  # Clients on this machine have its own name, which may be that of the loopback address.
  echo "head localhost $(hostname)" >"$common/host_aliases"
  cat >"$common/bootstrap" <<CONF
admin_user              none
default_domain          none
ignore_fqdn             true
spooling_method         classic
spooling_lib            libspoolc
spooling_params         $common;$spool/qmaster
binary_path             $GE/bin
qmaster_spool_dir       $spool/qmaster
security_mode           none
listener_threads        2
worker_threads          2
scheduler_threads       1
CONF
  # What a site's module or profile sets.
  cat >"$common/settings.sh" <<CONF
export SGE_ROOT=$GE SGE_CELL=default SGE_QMASTER_PORT=6444 SGE_EXECD_PORT=6445
PATH=$bin:\$PATH
CONF
  # Open MPI gives ranks process groups of their own, which outlive a job that is deleted. Sites set
  # ENABLE_ADDGRP_KILL, which ends all processes of a job, but never those of root. The nodes share this
  # machine's processes.
  cat >"$GE_CELL/epilog" <<'CONF'
#!/bin/bash
# One grep: one for each process would take half a second of a core after every job.
grep -lzxF "JOB_ID=$JOB_ID" /proc/[0-9]*/environ 2>/dev/null | while IFS=/ read -r _ _ pid _; do
  if grep -qzxF "SGE_TASK_ID=$SGE_TASK_ID" "/proc/$pid/environ" &&
    [ "$(ps -o sid= -p "$pid")" != "$(ps -o sid= -p $$)" ]; then
    kill -9 "$pid"
  fi
done 2>/dev/null
exit 0
CONF
  chmod 755 "$GE_CELL/epilog"
  sed -e "s|^execd_spool_dir .*|execd_spool_dir $spool|" -e 's|^min_[ug]id .*||' \
    -e 's|^load_report_time .*|load_report_time 00:00:05|' -e 's|^gid_range .*|gid_range 65400-65500|' \
    -e 's|^execd_params .*|execd_params ENABLE_ADDGRP_KILL=TRUE|' \
    -e "s|^epilog .*|epilog $GE_CELL/epilog|" \
    -e 's|^reporting_params .*|reporting_params accounting=true reporting=false flush_time=00:05:00 accounting_flush_time=00:00:00 joblog=false sharelog=00:00:00|' \
    "$GE/default-configuration" >"$GE_CELL/conf/global"
  printf 'min_uid 0\nmin_gid 0\n' >>"$GE_CELL/conf/global"
  ge spoolinit classic libspoolc "$common;$spool/qmaster" init
  ge spooldefaults.bin configuration "$GE_CELL/conf/global"
  ge spooldefaults.bin complexes "$GE/util/resources/centry"
  ge spooldefaults.bin usersets "$GE/util/resources/usersets"
  ge spooldefaults.bin managers root
  echo "$1" >"$spool/qmaster/jobseqnum"
}

# gridengine_queues: hosts, parallel environments, a complex for GPUs, and the queue.
gridengine_queues() {
  local conf=$GE_CELL/conf node
  for node in "${NODES[@]}"; do ge qconf -ah "$node"; done
  ge qconf -as head
  for node in "${NODES[@]}"; do ge qconf -as "$node"; done # a job may submit the next one
  printf 'group_name @allhosts\nhostlist %s\n' "${NODES[*]}" >"$conf/hosts"
  ge qconf -Ahgrp "$conf/hosts"
  # Consumed for each slot, as most consumables are.
  { ge qconf -sc; echo "gpu gpu INT <= YES YES 0 0"; } >"$conf/complexes"
  ge qconf -Mc "$conf/complexes"
  gridengine_pe mpi "$GE_SLOTS" # whole nodes
  gridengine_pe mpi4 4
  gridengine_pe smp "\$pe_slots"
  ge qconf -sq >"$conf/template"
  sed -e 's|^qname .*|qname all.q|' -e 's|^hostlist .*|hostlist @allhosts|' \
    -e "s|^slots .*|slots $GE_SLOTS|" -e 's|^pe_list .*|pe_list mpi mpi4 smp|' \
    -e 's|^shell .*|shell /bin/bash|' -e 's|^rerun .*|rerun TRUE|' \
    -e 's|^load_thresholds .*|load_thresholds NONE|' -e 's|^notify .*|notify 00:00:05|' \
    "$conf/template" >"$conf/all.q"
  ge qconf -Aq "$conf/all.q"
  for node in "${NODES[@]}"; do ge qconf -mattr exechost complex_values "gpu=$GPUS" "$node"; done
  # Decisions at once: this is no busy machine.
  ge qconf -ssconf | sed -e 's|^schedule_interval .*|schedule_interval 0:0:1|' \
    -e 's|^flush_submit_sec .*|flush_submit_sec 1|' -e 's|^flush_finish_sec .*|flush_finish_sec 1|' >"$conf/scheduler"
  ge qconf -Msconf "$conf/scheduler"
}

gridengine_pe() { # gridengine_pe NAME ALLOCATION_RULE
  cat >"$GE_CELL/conf/pe.$1" <<CONF
pe_name            $1
slots              999
user_lists         NONE
xuser_lists        NONE
start_proc_args    NONE
stop_proc_args     NONE
allocation_rule    $2
control_slaves     TRUE
job_is_first_task  FALSE
urgency_slots      min
accounting_summary FALSE
qsort_args         NONE
CONF
  ge qconf -Ap "$GE_CELL/conf/pe.$1"
}

gridengine_works() { ge timeout 20 qconf -sss 2>/dev/null | grep -q '^head'; }

# gridengine_node_works NODE: its execd must also be in the namespace that bears the node's name now.
gridengine_node_works() {
  local pid
  pid=$(pid_of "ge-$1") && [[ $(netns_of "$pid") == "$(netns_name "$1")" ]]
}

gridengine_stop() {
  local daemon
  for daemon in "${GE_DAEMONS[@]}"; do stop_daemon "$daemon"; done
}

# gridengine_alive: whether any of its daemons runs.
gridengine_alive() {
  local daemon
  for daemon in "${GE_DAEMONS[@]}"; do
    if pid_of "$daemon" >/dev/null; then return 0; fi
  done
  return 1
}

# gridengine_nodes: 'n1 0' and so on: the state of the queue on each node; 0 where it takes jobs.
gridengine_nodes() {
  ge timeout 20 qstat -f -q all.q 2>/dev/null |
    awk '/^all\.q@/ { sub(/^all\.q@/, ""); state = (NF > 5) ? $6 : 0; print $1, state }'
}

gridengine_start_master() {
  rm -f "$GE_CELL/spool/qmaster/qmaster.pid"
  # shellcheck disable=SC2016  # for the inner shell
  clean env "${GE_ENVIRONMENT[@]}" unshare --uts sh -c 'hostname head; exec "$1"' sh "$GE"/bin/lx-*/sge_qmaster || return 1
  ln -sfn "$GE_CELL/spool/qmaster/qmaster.pid" "$RUN/ge-master.pid"
  remember ge-master
}

gridengine_start_node() { # gridengine_start_node NODE
  rm -f "$GE_CELL/spool/$1/execd.pid"
  # shellcheck disable=SC2016  # for the inner shell
  clean env "${GE_ENVIRONMENT[@]}" nsenter --net="/run/netns/$1" unshare --uts \
    sh -c 'hostname "$1"; exec "$2"' sh "$1" "$GE"/bin/lx-*/sge_execd || return 1
  ln -sfn "$GE_CELL/spool/$1/execd.pid" "$RUN/ge-$1.pid"
  remember "ge-$1"
}

# gridengine_wait SECONDS COMMAND...: until it succeeds.
gridengine_wait() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < end)) || return 1
    sleep 0.3
  done
}

gridengine_ready() { [[ $(gridengine_nodes | grep -c ' 0$') -eq ${#NODES[@]} ]]; }

# gridengine_up: start it, or mend what does not work. Needs the functions `step`, `failed` and
# `clean` of up.
gridengine_up() {
  local log=$LOG/gridengine.log recipe node last=0
  if [[ ! -d $GE/bin && -z $(apt-cache policy gridengine-master 2>/dev/null) ]]; then
    say "this release has no package gridengine-master: no Grid Engine"
    return
  fi
  recipe=$(sha256sum "${BASH_SOURCE[0]}")
  if [[ -e $GE_CELL/recipe && $(cat "$GE_CELL/recipe") != "${recipe%% *}" ]]; then
    say "the configuration of Grid Engine changed: starting it anew"
    gridengine_stop
  fi
  [[ -d $GE/bin ]] || step "downloading Grid Engine" "$log" gridengine_download
  step "linking Grid Engine" "$log" gridengine_link
  if ! gridengine_alive; then
    # An empty queue. Job ids go on where they were, so that none is met twice.
    last=$(cat "$GE/last" "$GE_CELL/spool/qmaster/jobseqnum" 2>/dev/null | sort -n | tail -n 1) || true
    echo "${last:-1000}" >"$GE/last"
    step "making a cell" "$log" gridengine_cell "${last:-1000}"
  fi
  if ! pid_of ge-master >/dev/null || ! gridengine_works; then
    stop_daemon ge-master
    gridengine_start_master || failed "starting Grid Engine's master" "$LOG/daemons.log"
    gridengine_wait 30 gridengine_works || failed "asking Grid Engine's master" "$GE_CELL/spool/qmaster/messages"
  fi
  if [[ ! -e $GE_CELL/recipe ]]; then
    step "making queues" "$log" gridengine_queues
    echo "${recipe%% *}" >"$GE_CELL/recipe"
  fi
  for node in "${NODES[@]}"; do
    gridengine_node_works "$node" && continue
    stop_daemon "ge-$node"
    gridengine_start_node "$node" || failed "starting the execd of $node" "$LOG/daemons.log"
  done
  gridengine_wait 60 gridengine_ready ||
    failed "waiting for the nodes of Grid Engine" "$GE_CELL/spool/qmaster/messages"
}

gridengine_down() {
  if gridengine_alive && gridengine_works; then ge timeout 20 qdel -u '*' >/dev/null 2>&1 || true; fi
  gridengine_stop
  gridengine_unlink
}
