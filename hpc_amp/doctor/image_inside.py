"""Start an image on this machine and check what a rank would find in it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpc_amp.containers.base import Container, environment_of
from hpc_amp.containers.inspect import SUPPORT, driver_here
from hpc_amp.containers.ngc import OLDEST_PYTHON, OLDEST_TORCH, support, table, version
from hpc_amp.errors import HpcAmpError
from hpc_amp.finding import Finding, Findings, Severity
from hpc_amp.resources import resource_folder

_TIMEOUT = 600
_FACTS, _MORE = "hpc-amp-facts ", "hpc-amp-doctor "
_NETWORK_VARIABLES = (
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "NCCL_NET",
    "NCCL_IB_DISABLE",
    "NCCL_IB_HCA",
)

# Appended to the probe of `hpc-amp container inspect`, which has imported `json` and `sys`.
_ASK_MORE = """
import site
more = {"usersite": bool(site.ENABLE_USER_SITE), "user_folder": site.getusersitepackages()}
more["prefix"] = [sys.prefix, sys.base_prefix]
try:
    import torch
    more["count"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
    more["devices"] = []
    for index in range(more["count"]):
        entry = {"name": torch.cuda.get_device_name(index)}
        more["devices"].append(entry)
        try:
            for kind in (torch.float32, torch.bfloat16, torch.float16):
                square = torch.ones(512, 512, device=f"cuda:{index}", dtype=kind)
                assert float((square @ square).sum()) > 0
        except Exception as error:
            entry["error"] = str(error).splitlines()[0]
except Exception as error:
    more["error"] = str(error)
print("hpc-amp-doctor " + json.dumps(more))
"""


def look_inside(
    image: str,
    container: Container,
    *,
    python: str = "python3",
    binds: Sequence[str] = (),
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    trains: bool = True,
    gpus: int = 0,
) -> Findings:
    """Start the image, run a probe in it, and judge the answers.

    `python`, `binds` and the options `args` are those of the job, `env` has the variables that the
    job sets in the container, `trains` says whether the job uses built-in training, and `gpus` is
    the number of GPUs that the job uses on each node.
    """
    driver = driver_here()
    try:
        words = container.words_here(image, binds=binds, args=args, gpu=driver is not None)
    except HpcAmpError as error:
        yield Finding("rt.start", "unknown", error.message, where="image")
        return
    probe = (resource_folder("containers") / "probe.py").read_text() + _ASK_MORE
    try:
        ended = subprocess.run(
            [*words, python, "-B", "-"],
            input=probe.encode(),
            env={**environment_of(container, os.environ), "PYTHONNOUSERSITE": "1"},
            capture_output=True,
            timeout=_TIMEOUT,
            cwd="/",
            check=False,
        )
    except subprocess.TimeoutExpired:
        what = f"Python in the image did not answer within {_TIMEOUT} s"
        fix = "the file system of the image may be slow: copy the image to a faster one"
        yield _finding("rt.start", "error", what, "every rank starts the image", fix)
        return
    facts, more = _lines(ended.stdout)
    if not facts:
        said, cause = container.explain(
            (ended.stderr + b"\n" + ended.stdout).decode(errors="replace")
        )
        what = f"Python does not run in the image (status {ended.returncode}): {said}"
        arch = "architecture" in said or "exec format error" in said
        why = "every rank would fail in the same way"
        yield _finding("img.arch" if arch else "rt.start", "error", what, why, cause or "")
        return
    yield _finding("rt.start", "good", "the container starts")
    yield from judge(facts, more, env or {}, trains=trains, gpus=gpus, driver=driver)


def _lines(output: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    facts: dict[str, Any] = {}
    more: dict[str, Any] = {}
    for line in output.decode(errors="replace").splitlines():
        if line.startswith(_FACTS):
            facts = json.loads(line[len(_FACTS) :])
        elif line.startswith(_MORE):
            more = json.loads(line[len(_MORE) :])
    return facts, more


def judge(
    facts: Mapping[str, Any],
    more: Mapping[str, Any],
    env: Mapping[str, str],
    *,
    trains: bool,
    gpus: int,
    driver: str | None,
) -> Findings:
    """Judge the answers of the probe.

    `facts` and `more` are the answers of the two parts of the probe, `env` has the variables that
    the job sets, and `driver` is the version of the NVIDIA driver, or None without one.
    """
    environ: dict[str, str] = facts["environ"]
    yield from _judge_python(facts, trains=trains)
    cuda = environ.get("CUDA_VERSION") or facts.get("torch_cuda")
    release = environ.get("NVIDIA_PYTORCH_VERSION")
    parts = [f"NVIDIA's {release}" if release else "", f"torch {facts.get('torch')}"]
    parts += [f"CUDA {cuda}" if cuda else "no CUDA", f"Python {facts.get('python')}"]
    yield _finding("img.meta", "good", ", ".join(filter(None, parts)))
    yield from _judge_paths(facts, more, env)
    yield from _judge_masks(environ, env)
    yield from _judge_gpus(facts, more, gpus=gpus, driver=driver, cuda=cuda)


def _judge_python(facts: Mapping[str, Any], *, trains: bool) -> Findings:
    python, torch = facts.get("python"), facts.get("torch")
    oldest = ".".join(map(str, OLDEST_PYTHON))
    lacks = []
    if not python or version(python)[:2] < OLDEST_PYTHON:
        has = f"the image has {python}" if python else "the image has no Python"
        lacks.append(f"hpc-amp needs Python {oldest} or newer, and {has}")
    for name in ("torch", "torchvision") if trains else ():
        found = facts.get(name)
        if found is None:
            lacks.append(f"the image has no {name}")
        elif isinstance(found, dict):
            lacks.append(f"importing {name} fails: {found.get('error')}")
    if trains and isinstance(torch, str) and version(torch)[:2] < OLDEST_TORCH:
        needed = ".".join(map(str, OLDEST_TORCH))
        lacks.append(f"training needs torch {needed} or newer, and the image has {torch}")
    if lacks:
        fix = "use another image (hpc-amp container list), or set container.python to another one"
        yield _finding("img.python", "error", "; ".join(lacks), "the ranks would not start", fix)
    else:
        yield _finding("img.python", "good", f"Python {python}")


def _judge_paths(
    facts: Mapping[str, Any], more: Mapping[str, Any], env: Mapping[str, str]
) -> Findings:
    off = env.get("PYTHONNOUSERSITE", "1")
    folder = more.get("user_folder", "")
    if off == "" and folder and Path(folder).is_dir():
        what = f"packages in {folder} are imported before those of the image"
        fix = "do not set PYTHONNOUSERSITE to an empty value in container.env"
        why = "they were installed for another Python or torch"
        yield _finding("usersite", "warning", what, why, fix)
    else:
        text = "there are no packages in the home folder"
        if folder and Path(folder).is_dir():
            text = f"Python ignores the packages in {folder}"
        yield _finding("usersite", "good", text)
    file = facts.get("torch_file") or ""
    prefixes = [*more.get("prefix", []), "/usr/lib", "/usr/local", "/opt"]
    if file and not any(file.startswith(prefix.rstrip("/") + "/") for prefix in prefixes):
        what = f"torch is imported from {file}, which does not belong to the image's Python"
        fix = "check PYTHONPATH of the image and the binds"
        why = "it may be built for another Python or CUDA"
        yield _finding("py.path", "warning", what, why, fix)
    elif file:
        yield _finding("py.path", "good", f"torch is imported from {file}")


def _judge_masks(environ: Mapping[str, str], env: Mapping[str, str]) -> Findings:
    set_by_both = [name for name, value in env.items() if environ.get(name, value) != value]
    set_by_image = [
        f"{name}={environ[name]}"
        for name in _NETWORK_VARIABLES
        if environ.get(name) and name not in env
    ]
    if set_by_image:
        what = f"the image itself sets {', '.join(set_by_image)}"
        why = "the value is for the network of another machine and may be wrong here"
        fix = "set the variable in container.env, to the right value or to an empty one"
        yield _finding("env.masked", "warning", what, why, fix)
    elif set_by_both:
        names = ", ".join(sorted(set_by_both))
        what = f"the image also sets {names}; the values of the job are used"
        yield _finding("env.masked", "good", what)
    else:
        yield _finding("env.masked", "good", "the image sets no variable that the job sets")


def _judge_gpus(
    facts: Mapping[str, Any],
    more: Mapping[str, Any],
    *,
    gpus: int,
    driver: str | None,
    cuda: str | None,
) -> Findings:
    if driver is None:
        what = "this machine has no NVIDIA driver"
        for id in ("gpu.count", "gpu.driver", "gpu.alloc"):
            yield _finding(id, "unknown", what)
        return
    yield _judge_driver(facts, driver, cuda)
    count = int(more.get("count", 0))
    if count == 0:
        why = "the ranks would use the CPU, or fail"
        fix = "check that torch is built with CUDA, and that nvidia-smi works on this machine"
        yield _finding("gpu.count", "error", "torch sees no GPU of this machine", why, fix)
        return
    if gpus and count < gpus:
        what = f"torch sees {count} GPU(s) here, and the job uses {gpus} on each node"
        yield _finding("gpu.count", "unknown", f"{what}: the nodes may have more")
    else:
        yield _finding("gpu.count", "good", f"torch sees {count} GPU(s)")
    broken = [entry for entry in more["devices"] if "error" in entry]
    if broken:
        what = f"{broken[0]['name']}: {broken[0]['error']}"
        fix = "`no kernel image` means that torch is not built for this GPU: use another image"
        yield _finding("gpu.alloc", "error", what, "this GPU cannot be used", fix)
    else:
        what = "every GPU computes a matrix product in fp32, bf16 and fp16"
        yield _finding("gpu.alloc", "good", what)


def _judge_driver(facts: Mapping[str, Any], driver: str, cuda: str | None) -> Finding:
    environ = facts["environ"]
    row = table().find(environ.get("NVIDIA_PYTORCH_VERSION", ""))
    floor = table().floor(cuda) if cuda else None
    if floor is None:
        what = f"the driver is {driver}, but the CUDA version of the image is not known"
        return _finding("gpu.driver", "unknown", what)
    made_for = environ.get("CUDA_DRIVER_VERSION") or (row.driver if row else None)
    how = support(driver, made_for, floor, row.compat if row else None)
    what = f"driver {driver} runs CUDA {cuda} {SUPPORT[how]}"
    if how in ("native", "minor-version"):
        return _finding("gpu.driver", "good", what)
    fix = "use an image with an older CUDA: hpc-amp container list --driver " + driver
    severity: Severity = "error" if how == "too-old" else "warning"
    return _finding("gpu.driver", severity, what, f"the driver is older than {floor}", fix)


def _finding(
    id: str,
    severity: Severity,
    what: str,
    why: str = "",
    fix: str = "",
) -> Finding:
    return Finding(id, severity, what, why, fix, "image")
