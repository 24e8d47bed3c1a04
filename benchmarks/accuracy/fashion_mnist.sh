#!/usr/bin/env bash
# Fashion-MNIST on CPUs. $1: folder with the idx files, compressed or not, such as that of Debian's
# package dataset-fashion-mnist, /usr/share/datasets/fashion-mnist; further arguments are settings,
# such as train.seed=1.
set -euo pipefail
data=$(realpath "${1:?usage: fashion_mnist.sh FOLDER [KEY=VALUE]...}")
cd "$(dirname "$0")/../.."
time hpc-amp submit configs/fashion_mnist_cpu.yaml site=local --follow \
    train.data.root="$data" train.data.if_missing=error "${@:2}"
