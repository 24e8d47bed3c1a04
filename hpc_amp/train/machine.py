"""The hardware and software that a training runs on, for comparisons of speed."""

from __future__ import annotations

import os
import platform
import resource
import socket
from pathlib import Path
from typing import Any

import torch

import hpc_amp


def device_name(device: torch.device) -> str:
    """The model of the GPU or CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor()


def processor() -> str:
    """The model of the CPU, as the kernel names it."""
    for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return f"{os.uname().machine} CPU"


def peak_memory(device: torch.device) -> int:
    """Peak memory in bytes: on a GPU, the most that torch had allocated since the last reset; on a
    CPU, the largest resident size of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def tf32(device: torch.device) -> dict[str, bool] | None:
    """Which fp32 operations may use TF32, or None on a CPU."""
    if device.type != "cuda":
        return None
    return {
        "matmul": torch.get_float32_matmul_precision() != "highest",
        "convolution": torch.backends.cudnn.allow_tf32,
    }


def environment(device: torch.device) -> dict[str, Any]:
    """What may change the results of a training: versions, device, host."""
    return {
        "hpc_amp": hpc_amp.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "host": socket.gethostname(),
        "platform": platform.platform(),
    }


def versions(device: torch.device) -> dict[str, Any]:
    """What may change the speed of a training: `environment`, cuDNN, CPU model, threads."""
    cudnn = torch.backends.cudnn.version() if device.type == "cuda" else None
    threads = torch.get_num_threads()
    return {**environment(device), "cudnn": cudnn, "cpu": processor(), "threads": threads}
