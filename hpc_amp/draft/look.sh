#!/bin/bash
# Look at this node: `hpc-amp site draft --on-node` runs this in a small job. Each line of the
# output file is a key, a tab, and a value. The arguments are the output file and the programs of
# container runtimes.
out=$1
shift
: >"$out.part"

say() { # KEY VALUE: control characters would end the line
    printf '%s\t%s\n' "$1" "$(printf %s "$2" | tr '\t\n\r' '   ')" >>"$out.part"
}

first_line() { # COMMAND...: the first line of its output, within ten seconds
    timeout 10 "$@" 2>&1 </dev/null | grep -m 1 .
}

say host "$(hostname)"
say cpus "$(nproc)"
say machine "$(uname -m)"
for device in /dev/nvidia[0-9]* /dev/kfd /dev/infiniband /dev/cxi[0-9]* /dev/fuse /dev/xpmem /dev/dri/renderD*; do
    [ -e "$device" ] && say device "$device"
done
if command -v nvidia-smi >/dev/null; then
    timeout 30 nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>&1 </dev/null |
        while IFS= read -r line; do say gpu "$line"; done
fi
for folder in /sys/class/net/*; do
    say interface "${folder##*/}"
done
for folder in /sys/class/infiniband/*; do
    [ -e "$folder" ] && say card "${folder##*/}"
done
for program in "$@"; do
    path=$(command -v "$program") && say runtime "$program $path $(USER=${USER:-$(id -un)} first_line "$program" --version)"
done
for program in mpirun mpiexec; do
    command -v "$program" >/dev/null && say "$program" "$(first_line "$program" --version)"
done
while read -r _ place kind _; do
    say mount "$place $kind"
done </proc/mounts
for folder in "${TMPDIR:-}" "${SLURM_TMPDIR:-}" "${JOBFS:-}" "${LOCAL_SCRATCH:-}" /local/scratch /local_scratch \
    /localscratch /scratch/local /raid/scratch /raid /mnt/nvme /nvme /ssd /tmp; do
    if [ -d "$folder" ] && [ -w "$folder" ]; then
        say scratch "$folder $(stat -f -c %T "$folder") $(($(stat -f -c '%a * %S' "$folder") / 1073741824)) GiB"
    fi
done
for name in http_proxy https_proxy; do
    [ -n "${!name:-}" ] && say proxy "$name"
done
mv "$out.part" "$out"
