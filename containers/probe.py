"""Runs inside an image, with whatever Python it has: prints what is in there as one line of JSON.

Standard library only, and old Python: this is also how an image is found to be too old. What is not
there is None; it never fails for a package that does not import, but says why.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys


def package(name, attribute="__version__"):
    """A package's version, or its complaint as `{"error": ...}`."""
    try:
        module = __import__(name)
    except ImportError as error:
        missing = getattr(error, "name", None) == name
        return None if missing else {"error": str(error)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return str(getattr(module, attribute, "unknown"))


def torch_facts():
    facts = {"torch": package("torch")}
    if not isinstance(facts["torch"], str):
        return facts
    import torch

    facts["torch_file"] = torch.__file__
    facts["torch_cuda"] = torch.version.cuda
    facts["torch_hip"] = getattr(torch.version, "hip", None)
    try:
        facts["cudnn"] = torch.backends.cudnn.version()
    except Exception:
        facts["cudnn"] = None
    try:
        nccl = torch.cuda.nccl.version()
        facts["nccl"] = ".".join(map(str, nccl)) if isinstance(nccl, tuple) else str(nccl)
    except Exception:
        facts["nccl"] = None
    try:
        import torch.distributed as dist

        facts["gloo"] = bool(
            dist.is_available() and getattr(dist, "is_gloo_available", lambda: True)()
        )
    except Exception:
        facts["gloo"] = False
    try:
        facts["cuda_architectures"] = torch.cuda.get_arch_list()
    except Exception:
        facts["cuda_architectures"] = []
    return facts


def mpi_version():
    """Open MPI's version by its own programs, or by its library."""
    if os.environ.get("OPENMPI_VERSION"):
        return os.environ["OPENMPI_VERSION"]
    for words in (["ompi_info", "--version"], ["mpirun", "--version"]):
        if not shutil.which(words[0]):
            continue
        try:
            said = subprocess.run(
                words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30
            ).stdout.decode(errors="replace")
        except Exception:
            continue
        match = re.search(r"Open ?MPI\)? v?(\d+\.\d+[\w.]*)", said)
        if match:
            return match.group(1)
    import ctypes

    try:
        library = ctypes.CDLL("libmpi.so.40")
        text, length = ctypes.create_string_buffer(8192), ctypes.c_int()
        library.MPI_Get_library_version(text, ctypes.byref(length))
        match = re.search(r"Open MPI v(\d+\.\d+[\w.]*)", text.value.decode(errors="replace"))
        return match.group(1) if match else None
    except Exception:
        return None


facts = {
    "environ": dict(os.environ),
    "python": platform.python_version(),
    "executable": sys.executable,
    "machine": platform.machine(),
    "libc": " ".join(platform.libc_ver()).strip() or None,
}
facts.update(torch_facts())
facts["torchvision"] = package("torchvision")
facts["tensorboard"] = package("tensorboard")
facts["mpi4py"] = package("mpi4py")
facts["openmpi"] = mpi_version()
print("hpc-amp-facts " + json.dumps(facts))
