"""The GPU checks of the preflight. They ask the NVIDIA driver directly, without torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from hpc_amp.finding import Finding, Findings, Severity
from hpc_amp.preflight.node import Node

_GIB = 2**30
_DRIVER_SECONDS = 60.0
"""A driver that does not answer for so long is reported to hang."""
_BUSY = 1.5 * _GIB
"""Used memory above which a GPU is reported to be in use by another process. This check's own
process uses less."""
_SWITCHES = re.compile(r"--gpus-per-task|--gpu-bind|--tres-bind|--tres-per-task")

# Asks the driver through libcuda, without torch and without the CUDA runtime.
_ASK_DRIVER = """
import ctypes, json
facts, number = {}, ctypes.c_int
def tell():
    print(json.dumps(facts))
    raise SystemExit
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    facts["library"] = str(error)
    tell()
value = number()
cuda.cuDriverGetVersion(ctypes.byref(value))
facts["cuda"] = value.value
facts["init"] = cuda.cuInit(0)
if facts["init"]:
    tell()
cuda.cuDeviceGetCount(ctypes.byref(value))
facts["devices"] = []
for index in range(value.value):
    device, name, context = number(), ctypes.create_string_buffer(256), ctypes.c_void_p()
    cuda.cuDeviceGet(ctypes.byref(device), index)
    cuda.cuDeviceGetName(name, 256, device)
    entry = {"index": index, "name": name.value.decode(errors="replace")}
    facts["devices"].append(entry)
    entry["code"] = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    if entry["code"]:
        continue
    cuda.cuCtxSetCurrent(context)
    free, total, place = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    entry["free"], entry["total"] = free.value, total.value
    entry["code"] = cuda.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(1 << 20))
    cuda.cuDevicePrimaryCtxRelease_v2(device)
tell()
"""


def check_gpus(node: Node) -> Findings:
    """Check that the GPUs are visible and that the driver supports the image's CUDA.

    The driver is asked in a separate process, which can be killed if the driver hangs.
    """
    if node.gpus == 0:
        return
    train = node.job.get("train") or {}
    if not node.at("/dev/nvidiactl").exists():
        if node.at("/dev/kfd").exists():
            yield Finding("gpu.count", "unknown", "AMD GPUs cannot be checked here")
            return
        severity: Severity = "error" if train.get("device") == "cuda" else "warning"
        what = f"{node.gpus} GPU(s) were requested, but this node has no NVIDIA device"
        why = "the ranks would use the CPU"
        fix = "run nvidia-smi on the node, and check that the script requests GPUs"
        yield Finding("gpu.count", severity, what, why, fix)
        return
    if not node.at("/dev/nvidia-uvm").exists():
        what = (
            "the node has GPUs, but no /dev/nvidia-uvm: the kernel module nvidia_uvm is not loaded"
        )
        fix = "ask an administrator to run `nvidia-modprobe -u -c=0` on the node"
        yield Finding("gpu.count", "error", what, "CUDA would fail: `unknown error`", fix)
        return
    facts = _ask_driver(node)
    yield from judge_gpus(node, facts)


def judge_gpus(node: Node, facts: Mapping[str, Any]) -> Findings:
    """Judge the answers of the driver, `facts`."""
    driver = _driver(node)
    needs_gpu = bool(node.job.get("train")) and node.job["train"]["device"] != "cpu"
    failed: Severity = "error" if needs_gpu else "warning"
    if "hangs" in facts:
        what = f"the NVIDIA driver does not answer within {facts['hangs']} s"
        fix = "exclude this node and report it: a GPU may have fallen off the bus"
        yield Finding("gpu.alloc", "error", what, "CUDA programs hang on this node", fix)
        return
    if "library" in facts:
        what = f"libcuda.so.1 cannot be loaded in the container: {facts['library']}"
        fix = (
            "set container.gpu: true (--nv); if the driver was installed recently, `ldconfig` must "
            "be run on the node"
        )
        yield Finding("gpu.count", failed, what, "the ranks would see no GPU", fix)
        return
    code = facts.get("init", 0)
    if code == 0:
        yield from _judge_devices(node, facts)
    else:
        yield Finding("gpu.alloc", failed, *_cuda_error(code, driver))
    yield _judge_driver(node, driver, works=code == 0, speaks=int(facts.get("cuda", 0)))


def _judge_devices(node: Node, facts: Mapping[str, Any]) -> Findings:
    devices = facts.get("devices", [])
    count = len(devices)
    arguments = " ".join(node.job.get("launch", {}).get("args") or [])
    if count == 0:
        what = f"the driver shows none of the {node.gpus} requested GPU(s)"
        fix = "check CUDA_VISIBLE_DEVICES, also in container.env and in the image"
        yield Finding("gpu.count", "error", what, "the ranks would see no GPU", fix)
    elif count < node.gpus and _SWITCHES.search(arguments):
        what = f"{count} of {node.gpus} GPUs are visible: launch.args give each task its own GPUs"
        yield Finding("gpu.count", "unknown", what)
    elif count < node.gpus:
        what = f"only {count} of the {node.gpus} requested GPUs are visible"
        why = "ranks would share a GPU, or have none"
        fix = (
            "check CUDA_VISIBLE_DEVICES in container.env and the image, and nvidia-smi on the node"
        )
        severity: Severity = "error" if count < node.ranks else "warning"
        yield Finding("gpu.count", severity, what, why, fix)
    elif count > node.gpus and not node.resolved.get("whole_nodes", True):
        # PBS without its cgroups hook, Slurm without ConstrainDevices.
        what = f"{count} GPUs are visible, but only {node.gpus} were requested"
        why = (
            "the scheduler counts GPUs but does not restrict jobs to them: another job on this "
            "node may use the same GPUs"
        )
        fix = "request whole nodes, or see `GPUs that are only counted` in docs/sites.md"
        yield Finding("gpu.count", "warning", what, why, fix)
    else:
        names = sorted({str(device["name"]) for device in devices})
        yield Finding("gpu.count", "good", f"{count} GPU(s): {', '.join(names)}")
    broken = [device for device in devices if device.get("code")]
    busy = [
        device
        for device in devices
        if device.get("total")
        and device["total"] - device["free"] > min(device["total"] * 0.2, _BUSY)
    ]
    for device in broken:
        what, why, fix = _cuda_error(int(device["code"]), None)
        yield Finding("gpu.alloc", "error", f"GPU {device['index']}: {what}", why, fix)
    for device in busy:
        used = (device["total"] - device["free"]) / _GIB
        what = f"GPU {device['index']}: other processes use {used:.1f} GiB of its memory"
        why = "the ranks may run out of memory, and may be slower"
        fix = "run nvidia-smi on the node: another job, or a process left by one, uses this GPU"
        yield Finding("gpu.alloc", "warning", what, why, fix)
    if devices and not broken and not busy:
        yield Finding("gpu.alloc", "good", "memory can be allocated on every GPU")


_FLOORS = {11: (450, 80, 2), 12: (525,), 13: (580,)}


def _judge_driver(node: Node, driver: str | None, *, works: bool, speaks: int) -> Finding:
    """Check that the driver supports the image's CUDA.

    A driver that is as new as the image's works natively. An older one works by minor-version
    compatibility, down to the oldest driver for this major version of CUDA (`_FLOORS`). A driver
    older than that needs the compatibility libraries of the image (docs/containers.md).
    """
    cuda = node.environ.get("CUDA_VERSION", "")
    native = node.environ.get("CUDA_DRIVER_VERSION", "")
    if driver is None:
        return Finding("gpu.driver", "unknown", "the version of the driver is not known")
    if not (cuda or native):
        return Finding("gpu.driver", "unknown", "the CUDA version of the image is not known")
    have = _numbers(driver)
    if native and have[: len(_numbers(native))] >= _numbers(native):
        return Finding("gpu.driver", "good", f"driver {driver} is as new as the image's {native}")
    floor = _FLOORS.get(int(cuda.partition(".")[0] or 0)) if cuda[:1].isdigit() else None
    if floor is None:
        return Finding("gpu.driver", "unknown", f"driver {driver} with CUDA {cuda or 'unknown'}")
    if have >= floor:
        note = "by minor-version compatibility: PTX that is newer than the driver is not compiled"
        return Finding("gpu.driver", "good", f"driver {driver} runs CUDA {cuda} {note}")
    if works and speaks // 1000 >= int(cuda.partition(".")[0]):
        return Finding(
            "gpu.driver", "good", f"driver {driver} runs CUDA {cuda} by compatibility libraries"
        )
    lowest = ".".join(map(str, floor))
    places = ("/usr/local/cuda/compat/lib.real", "/usr/local/cuda/compat")
    folder = next((path for path in places if node.at(path).is_dir()), None)
    what = f"driver {driver} is too old for the image's CUDA {cuda}, which needs {lowest}"
    fix = "use an image with an older CUDA (hpc-amp container list)"
    if folder:
        fix += f", or on data-centre GPUs put {folder} first in LD_LIBRARY_PATH"
    needs_gpu = bool(node.job.get("train"))
    return Finding(
        "gpu.driver", "error" if needs_gpu else "warning", what, "CUDA does not start", fix
    )


def _cuda_error(code: int, driver: str | None) -> tuple[str, str, str]:
    """`what`, `why` and `fix` of a failed call of the driver."""
    said = f"CUDA error {code}" + (f", driver {driver}" if driver else "")
    exclude = "exclude this node and report it to an administrator"
    left_over = "run nvidia-smi: a process of an earlier job may still be running"
    compat = "remove the folders of cuda/compat from LD_LIBRARY_PATH"
    known = {
        2: ("a GPU has no free memory", left_over),
        3: ("the driver does not start", exclude),
        46: ("another process has exclusive use of a GPU", left_over),
        100: ("the driver sees no GPU", "check CUDA_VISIBLE_DEVICES, and nvidia-smi on the node"),
        101: (
            "CUDA_VISIBLE_DEVICES names a GPU that does not exist",
            "remove it from container.env",
        ),
        214: ("a GPU has a memory error that ECC cannot correct", exclude),
        802: ("the switch between the GPUs is not ready (fabric manager)", exclude),
        803: ("libcuda in the container does not match the kernel's driver", compat),
        804: ("these GPUs do not work with the image's compatibility libraries", compat),
        999: (
            "the driver fails with an unknown error",
            f"ask for `nvidia-modprobe -u -c=0` on the node, or {exclude}",
        ),
    }
    what, fix = known.get(code, ("the driver does not start", exclude))
    return f"{what} ({said})", "the ranks would see no GPU", fix


def _ask_driver(node: Node) -> dict[str, Any]:
    try:
        ended = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _ASK_DRIVER],
            env=node.program,
            capture_output=True,
            timeout=_DRIVER_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"hangs": _DRIVER_SECONDS}
    try:
        facts: dict[str, Any] = json.loads(ended.stdout)
    except ValueError:
        return {"init": 3}
    return facts


def _driver(node: Node) -> str | None:
    try:
        text = node.at("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    found = re.search(r"\b(\d{3,4}\.\d+(\.\d+)?)\b", text)
    return found[1] if found else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
