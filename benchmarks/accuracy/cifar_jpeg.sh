#!/usr/bin/env bash
# CIFAR-10 as JPEG files on CPUs. $1: folder with train/<class>/*.jpg and test/<class>/*.jpg; further
# arguments are settings, such as train.seed=1.
set -euo pipefail
data=$(realpath "${1:?usage: cifar_jpeg.sh FOLDER [KEY=VALUE]...}")
cd "$(dirname "$0")/../.."
time hpc-amp submit configs/cifar_jpeg_cpu.yaml site=local --follow \
    train.data.root="$data" train.data.if_missing=error "${@:2}"
