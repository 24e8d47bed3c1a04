"""The GPU checks of a node's preflight: the driver itself is asked, without torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from hpc_amp.preflight.node import CheckResult, Findings, Node

_GIB = 2**30
_DRIVER_SECONDS = 60.0
"""After which a driver that does not answer is reported to hang."""
_BUSY = 1.5 * _GIB
"""More than the driver's own share of this check's process."""
_SWITCHES = re.compile(r"--gpus-per-task|--gpu-bind|--tres-bind|--tres-per-task")

# Asks the driver through its own library, without torch and without CUDA's runtime.
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
    """Whether the GPUs are there, and the image and the driver fit. The driver itself is asked, in
    a process of its own: one that hangs can be ended."""
    if node.gpus == 0:
        return
    train = node.job.get("train") or {}
    if not node.at("/dev/nvidiactl").exists():
        if node.at("/dev/kfd").exists():
            yield CheckResult("gpu.count", "unknown", "AMD GPUs cannot be checked here")
            return
        status = "error" if train.get("device") == "cuda" else "warning"
        what = f"{node.gpus} GPU(s) were asked for, and this node shows no NVIDIA device"
        why = "the ranks would compute on CPUs"
        fix = "see nvidia-smi on the node, and whether the request for GPUs is in the script"
        yield CheckResult("gpu.count", status, what, why, fix)
        return
    if not node.at("/dev/nvidia-uvm").exists():
        what = (
            "the node has GPUs, but no /dev/nvidia-uvm: the kernel module nvidia_uvm is not loaded"
        )
        fix = "have an administrator run `nvidia-modprobe -u -c=0` on the node"
        yield CheckResult("gpu.count", "error", what, "CUDA fails with `unknown error` then", fix)
        return
    facts = _ask_driver(node)
    yield from judge_gpus(node, facts)


def judge_gpus(node: Node, facts: Mapping[str, Any]) -> Findings:
    """What the driver's answers mean."""
    driver = _driver(node)
    needs_gpu = bool(node.job.get("train")) and node.job["train"]["device"] != "cpu"
    failed = "error" if needs_gpu else "warning"
    if "hangs" in facts:
        what = f"the NVIDIA driver gives no answer in {facts['hangs']} s"
        fix = "leave this node out, and tell an administrator: a GPU may have fallen off the bus"
        yield CheckResult("gpu.alloc", "error", what, "CUDA programs hang on this node", fix)
        return
    if "library" in facts:
        what = f"libcuda.so.1 is not inside: {facts['library']}"
        fix = (
            "use container.gpu: true (--nv); on a node whose driver came later, have `ldconfig` run"
        )
        yield CheckResult("gpu.count", failed, what, "the ranks would see no GPU", fix)
        return
    code = facts.get("init", 0)
    if code == 0:
        yield from _judge_devices(node, facts)
    else:
        yield CheckResult("gpu.alloc", failed, *_cuda_error(code, driver))
    yield _judge_driver(node, driver, works=code == 0, speaks=int(facts.get("cuda", 0)))


def _judge_devices(node: Node, facts: Mapping[str, Any]) -> Findings:
    devices = facts.get("devices", [])
    count = len(devices)
    arguments = " ".join(node.job.get("launch", {}).get("args") or [])
    if count == 0:
        what = f"the driver shows none of the {node.gpus} GPU(s) that were asked for"
        fix = "see CUDA_VISIBLE_DEVICES, also in container.env and the image"
        yield CheckResult("gpu.count", "error", what, "the ranks would see no GPU", fix)
    elif count < node.gpus and _SWITCHES.search(arguments):
        what = f"{count} of {node.gpus} GPUs: launch.args bind them to tasks, and this is one task"
        yield CheckResult("gpu.count", "unknown", what)
    elif count < node.gpus:
        what = f"the ranks would see {count} of the {node.gpus} GPUs that were asked for"
        why = "ranks would share a GPU, or have none"
        fix = "see CUDA_VISIBLE_DEVICES in container.env and the image, and nvidia-smi on the node"
        status = "error" if count < node.ranks else "warning"
        yield CheckResult("gpu.count", status, what, why, fix)
    elif count > node.gpus and not node.resolved.get("whole_nodes", True):
        # PBS without its cgroups hook, Slurm without ConstrainDevices.
        what = f"{count} GPUs can be seen, and {node.gpus} were asked for"
        why = (
            "the scheduler counts GPUs here, and keeps no job to its own: another job on this node "
            "computes on the same ones"
        )
        fix = "ask for whole nodes, or see `GPUs that are only counted` in docs/sites.md"
        yield CheckResult("gpu.count", "warning", what, why, fix)
    else:
        names = sorted({str(device["name"]) for device in devices})
        yield CheckResult("gpu.count", "good", f"{count} GPU(s): {', '.join(names)}")
    broken = [device for device in devices if device.get("code")]
    busy = [
        device
        for device in devices
        if device.get("total")
        and device["total"] - device["free"] > min(device["total"] * 0.2, _BUSY)
    ]
    for device in broken:
        what, why, fix = _cuda_error(int(device["code"]), None)
        yield CheckResult("gpu.alloc", "error", f"GPU {device['index']}: {what}", why, fix)
    for device in busy:
        used = (device["total"] - device["free"]) / _GIB
        what = f"GPU {device['index']}: {used:.1f} GiB of its memory are in use by somebody else"
        why = "the ranks may run out of memory, and compute more slowly"
        fix = "see nvidia-smi on the node: another job is at work on it, or something stayed of one"
        yield CheckResult("gpu.alloc", "warning", what, why, fix)
    if devices and not broken and not busy:
        yield CheckResult("gpu.alloc", "good", "memory can be had on every GPU")


_FLOORS = {11: (450, 80, 2), 12: (525,), 13: (580,)}


def _judge_driver(node: Node, driver: str | None, *, works: bool, speaks: int) -> CheckResult:
    """Native from the driver that the image was made for on; by minor-version compatibility from a
    floor on; below it only with the image's own compatibility libraries (docs/containers)."""
    cuda = node.environ.get("CUDA_VERSION", "")
    native = node.environ.get("CUDA_DRIVER_VERSION", "")
    if driver is None or not (cuda or native):
        what = (
            "the image does not say its CUDA version"
            if driver
            else "the driver's version is not known"
        )
        return CheckResult("gpu.driver", "unknown", what)
    have = _numbers(driver)
    if native and have[: len(_numbers(native))] >= _numbers(native):
        return CheckResult(
            "gpu.driver", "good", f"driver {driver} is as new as the image's {native}"
        )
    floor = _FLOORS.get(int(cuda.partition(".")[0] or 0)) if cuda[:1].isdigit() else None
    if floor is None:
        return CheckResult(
            "gpu.driver", "unknown", f"driver {driver} with CUDA {cuda or 'unknown'}"
        )
    if have >= floor:
        note = "by minor-version compatibility: PTX that is newer than the driver is not compiled"
        return CheckResult("gpu.driver", "good", f"driver {driver} runs CUDA {cuda} {note}")
    if works and speaks // 1000 >= int(cuda.partition(".")[0]):
        return CheckResult(
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
    return CheckResult(
        "gpu.driver", "error" if needs_gpu else "warning", what, "CUDA does not start", fix
    )


def _cuda_error(code: int, driver: str | None) -> tuple[str, str, str]:
    """What, why and what to do of a failed call of the driver."""
    said = f"CUDA error {code}" + (f", driver {driver}" if driver else "")
    away = "leave this node out, and tell an administrator"
    stayed = "see nvidia-smi: a process of an earlier job may have stayed"
    compat = "take the folders of cuda/compat out of LD_LIBRARY_PATH"
    known = {
        2: ("a GPU has no memory left", stayed),
        3: ("the driver does not start", away),
        46: ("a GPU is taken by another process, for itself alone", stayed),
        100: ("the driver sees no GPU", "see CUDA_VISIBLE_DEVICES, and nvidia-smi on the node"),
        101: ("CUDA_VISIBLE_DEVICES names a GPU that is not there", "take it out of container.env"),
        214: ("a GPU has a memory error that ECC cannot correct", away),
        802: ("the switch between the GPUs is not ready (fabric manager)", away),
        803: ("the driver's library inside does not fit the driver in the kernel", compat),
        804: ("these GPUs do not work with the image's compatibility libraries", compat),
        999: (
            "the driver fails without saying why",
            f"have `nvidia-modprobe -u -c=0` run on the node, or {away}",
        ),
    }
    what, fix = known.get(code, ("the driver does not start", away))
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
