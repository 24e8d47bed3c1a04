#!/usr/bin/env bash
# The figures that need a GPU, in under ten minutes. Raw logs go to benchmarks/records/gpu-DATE/.
#
#   benchmarks/gpu.sh [--small] [--out FOLDER] [PART]...
#
# PART: resnet50, compile, overhead, checkpoint, dcgan, spade, cifar; by default, all of them.
# cifar needs the folder of CIFAR-10 in $CIFAR10, and is skipped without it.
# --small: the same on CPUs with tiny networks and one step, to try the script itself. The numbers
# mean nothing then.
#
# $PYTHON is the interpreter that has hpc-amp and torch, by default python3. A part that fails or
# takes too long does not stop the others. The exit status is 1 if any part failed.
# shellcheck disable=SC2317 # the parts are called by their names
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
python=${PYTHON:-python3}
small='' out=benchmarks/records/gpu-$(date +%Y-%m-%d) parts=()
while (($#)); do
    case $1 in
        --small) small=1 ;;
        --out) out=${2:?--out needs a folder}; shift ;;
        -*) echo "gpu.sh: unknown option $1" >&2; exit 2 ;;
        *) parts+=("$1") ;;
    esac
    shift
done
((${#parts[@]})) || parts=(resnet50 compile overhead checkpoint dcgan spade cifar)
mkdir -p "$out" || exit 2
out=$(realpath "$out")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What every job has in common.
job=(site=local job.nodes=1 runs_dir="$work")
if [[ $small ]]; then
    job+=(job.gpus_per_node=0 job.ranks_per_node=1 job.cpus_per_gpu=1 train.batch_size=2)
    steps=(--steps 1 --warmup 0 --repeats 1)
    tiny='{train: 8, test: 2, classes: 10, image_size: 16}'
    network=(train.model=resnet8 train.data.synthetic="$tiny" train.eval_batch_size=2)
else
    job+=(job.gpus_per_node=1)
    steps=(--steps 50 --warmup 20 --repeats 1)
    network=()
fi

# bench CONFIG PRECISIONS KEY=VALUE...
bench() {
    local precisions=$2
    [[ $small ]] && precisions=fp32
    "$python" -m hpc_amp bench start "$1" --benches-dir "$work" --yes "${steps[@]}" \
        --precisions "$precisions" "${job[@]}" "${@:3}"
}

resnet50() { bench configs/resnet50.yaml fp32,tf32,bf16,fp16 "${network[@]}"; }

compile() { bench configs/resnet50.yaml bf16,fp16 train.compile=true "${network[@]}"; }

overhead() {
    if [[ $small ]]; then
        "$python" benchmarks/overhead.py --rounds 1 --steps 50
    else
        "$python" benchmarks/overhead.py --device cuda
    fi
}

checkpoint() {
    if [[ $small ]]; then
        "$python" benchmarks/checkpoint.py --rounds 1 --linear 8
    else
        # Four layers of 8192 x 8192 in fp32 with momentum: 2.1 GB.
        "$python" benchmarks/checkpoint.py --rounds 3 --linear 8192 --device cuda
    fi
}

dcgan() {
    local data='{name: synthetic, synthetic: {train: 1024, test: 64, image_size: 32}}' widths=()
    [[ $small ]] && widths=(train.gan.generator_width=4 train.gan.discriminator_width=4
        train.gan.evaluation_images=4)
    bench configs/dcgan.yaml fp32,bf16,fp16 train.data="$data" "${widths[@]}"
}

spade() {
    local config=configs/spade.yaml own
    own=(train.sync_batchnorm=false
        train.images='{name: synthetic, labels: 32, image_size: [256], synthetic: {train: 64, test: 8}}'
        train.batch_size=8)
    if [[ $small ]]; then
        config=configs/spade_small.yaml
        own=(train.images.synthetic='{train: 4, test: 2}')
    fi
    bench "$config" fp32,bf16,fp16 "${own[@]}"
}

# ResNet-18 to 94 %.
cifar() {
    "$python" -m hpc_amp submit configs/cifar_resnet.yaml --follow "${job[@]}" \
        name=cifar94 train.model=resnet18 train.data.root="$CIFAR10" train.data.if_missing=error \
        train.epochs=30 train.max_steps=null train.batch_size=512 train.optimizer.lr=0.4 \
        train.label_smoothing=0.1 train.ema=0.99 train.log_every=50 job.walltime=10m
}

# Seconds after which a part is ended; together under ten minutes.
declare -A limit=([resnet50]=110 [compile]=120 [overhead]=40 [checkpoint]=60 [dcgan]=60 [spade]=80
    [cifar]=120)

# run PART: it and what ends it at the time limit have process groups of their own.
run() {
    local part=$1 begun=$SECONDS status=0
    {
        date -u +%FT%TZ
        git rev-parse HEAD 2>/dev/null
        command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version --format=csv
    } >"$out/$part.log"
    local seconds=${limit[$part]}
    [[ $small ]] && seconds=600 # a machine that tests it may be busy
    set -m
    ("$part") >>"$out/$part.log" 2>&1 &
    local pid=$!
    (sleep "$seconds"; kill -TERM -- -"$pid") >/dev/null 2>&1 &
    local watcher=$!
    set +m
    wait "$pid" || status=$?
    kill -TERM -- -"$watcher" 2>/dev/null
    echo "$part: exit status $status after $((SECONDS - begun)) s; $out/$part.log"
    return "$status"
}

failed=0
for part in "${parts[@]}"; do
    if [[ -z ${limit[$part]:-} ]]; then
        echo "gpu.sh: no part $part; there are ${!limit[*]}" >&2
        exit 2
    fi
    if [[ $part == cifar && -z ${CIFAR10:-} ]]; then
        echo "cifar: skipped, since CIFAR10 names no folder"
        continue
    fi
    run "$part" || failed=1
done
exit "$failed"
