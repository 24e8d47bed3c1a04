# shellcheck shell=bash disable=SC2034,SC2154 # variables of what sources this
# This machine, without a scheduler.

scheduler_begins() {
  # Process number and start time: the number alone comes back after a reboot.
  job_id="local-$$-$(awk '{ print $22 }' "/proc/$$/stat")"
}

# job_state JOB_ID HOST: running or ended; nothing for a job of another machine.
job_state() {
  local pid=${1#local-}
  pid=${pid%-*}
  [ "$2" = "$HOSTNAME" ] || return 0
  if [ "$(awk '$3 != "Z" { print $22 }' "/proc/$pid/stat" 2>/dev/null)" = "${1##*-}" ]; then
    echo running
  else
    echo ended
  fi
}

# read_allocation: what the scheduler gave this job: `hosts`, `deadline` and `port_seed`.
read_allocation() {
  # This machine is the whole allocation.
  hosts=localhost
  master_addr=127.0.0.1
  port_seed=$$
}

# go_on: have the script started again; returns where that cannot be had.
go_on() {
  exec bash "$run_dir/launch.sh"
}
