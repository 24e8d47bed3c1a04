# shellcheck shell=bash disable=SC2034
# Shared by up, down, status and env: where things are, and how to tell whether
# a process is one of ours. Sourced, never run.

STATE=${HPC_AMP_CLUSTER_DIR:-/var/lib/hpc-amp-cluster}
RUN=$STATE/run          # process ids, sockets: worthless after a reboot
LOG=$STATE/log          # one log a daemon, and install.log
SPOOL=$STATE/spool      # slurmctld's and the slurmds' own state
CONF=$STATE/etc         # slurm.conf, gres.conf
BIN=$STATE/bin          # apptainer, singularity
IMAGE=$STATE/base.sif
APPTAINER_TREE=$STATE/apptainer
SOCKET=$RUN/munge.socket

NODES=(n1 n2 n3 n4)
NET=10.77.0
BRIDGE=hpcamp0
GPUS=4
HOSTS_BEGIN='# >>> hpc-amp test cluster >>>'
HOSTS_END='# <<< hpc-amp test cluster <<<'

export SLURM_CONF=$CONF/slurm.conf
export LC_ALL=C.UTF-8
PATH=$BIN:$PATH:/usr/local/sbin:/usr/sbin:/sbin

say() { printf 'cluster: %s\n' "$*"; }
die() { printf 'cluster: %s\n' "$*" >&2; exit 1; }

[[ $STATE =~ ^/[A-Za-z0-9._/-]+$ ]] ||
  die "HPC_AMP_CLUSTER_DIR must be an absolute path without spaces, not '$STATE'"

need_root() { [[ $EUID -eq 0 ]] || die "must run as root (namespaces, devices, /etc/hosts)"; }

# One 'up' or 'down' at a time. Daemons are started with this descriptor closed.
take_lock() {
  mkdir -p "$STATE"
  exec 9>"$STATE/lock"
  flock -n 9 && return
  say "another 'up' or 'down' is at work; waiting for it"
  flock -w 900 9 || die "still locked after 15 minutes: $STATE/lock"
}

node_address() { printf '%s.1%s' "$NET" "${1#n}"; }
boot_id() { cat /proc/sys/kernel/random/boot_id; }

# The 22nd field of /proc/PID/stat: with the boot id it names a process for good,
# so that a pid file from before a reboot, or a reused pid, fools nobody.
start_time() {
  local -a stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  read -r -a stat <<<"${stat##*) }"
  [[ ${stat[0]} != Z && ${stat[0]} != X ]] || return 1
  printf '%s' "${stat[19]}"
}

# remember NAME: note the process that NAME's own pid file points at.
remember() {
  local pid started
  for _ in {1..100}; do
    if [[ -s $RUN/$1.pid ]]; then
      read -r pid _ <"$RUN/$1.pid" || true
      if started=$(start_time "$pid"); then
        printf '%s %s %s\n' "$pid" "$started" "$(boot_id)" >"$RUN/$1.id"
        return 0
      fi
    fi
    sleep 0.1
  done
  return 1
}

# pid_of NAME: the pid of our running daemon NAME; fails when it does not run.
pid_of() {
  local pid started boot
  [[ -s $RUN/$1.id ]] || return 1
  read -r pid started boot <"$RUN/$1.id" || return 1
  [[ $boot == "$(boot_id)" && $(start_time "$pid") == "$started" ]] || return 1
  printf '%s' "$pid"
}

stop_daemon() {
  local pid
  if pid=$(pid_of "$1"); then
    kill "$pid" 2>/dev/null || true
    for _ in {1..100}; do
      pid_of "$1" >/dev/null || break
      sleep 0.1
    done
    if pid_of "$1" >/dev/null; then kill -9 "$pid" 2>/dev/null || true; fi
  fi
  rm -f "$RUN/$1.id" "$RUN/$1.pid"
}

netns_of() { readlink "/proc/$1/ns/net" 2>/dev/null; }

# netns_name NODE: 'net:[INODE]' of the node's network namespace, if it is one.
netns_name() {
  local inode
  [[ $(stat -f -c %T "/run/netns/$1" 2>/dev/null) == nsfs ]] || return 1
  inode=$(stat -L -c %i "/run/netns/$1") || return 1
  printf 'net:[%s]' "$inode"
}

# Whatever still runs inside a node (job steps, and what they started) is stopped
# by process id: a process is in a node when it is in the node's network namespace.
stop_node_processes() {
  local want proc
  want=$(netns_name "$1") || return 0
  [[ $want != "$(netns_of self)" && $want != "$(netns_of 1)" ]] || return 0
  for proc in /proc/[0-9]*; do
    if [[ $(netns_of "${proc#/proc/}") == "$want" ]]; then
      kill -9 "${proc#/proc/}" 2>/dev/null || true
    fi
  done
}

munge_works() {
  [[ -S $SOCKET ]] && timeout 10 munge -S "$SOCKET" -n 2>/dev/null |
    timeout 10 unmunge -S "$SOCKET" >/dev/null 2>&1
}
slurmctld_works() { timeout 20 scontrol ping 2>/dev/null | grep -q ' is UP'; }

# node_states: 'n1 idle' and so on, as Slurm sees them.
node_states() { timeout 20 sinfo -h -N -p batch -o '%N %t'; }

node_network_works() {
  netns_name "$1" >/dev/null &&
    ip -n "$1" -4 -o address show dev eth0 up 2>/dev/null | grep -qF " $(node_address "$1")/24" &&
    ip -o link show dev "$BRIDGE-$1" 2>/dev/null | grep -qF " master $BRIDGE "
}

# A node's slurmd must also be in the namespace that bears the node's name now.
slurmd_works() {
  local pid
  pid=$(pid_of "$1") && [[ $(netns_of "$pid") == "$(netns_name "$1")" ]]
}
