"""All checks, and `python -m hpc_amp.doctor.catalogue [--check]`, which writes docs/doctor.md's
table."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

BEGIN = "<!-- table: python -m hpc_amp.doctor.catalogue -->"
END = "<!-- end of the table -->"


@dataclass(frozen=True, slots=True)
class Check:
    """One check, under the id that findings have."""

    id: str
    places: tuple[str, ...]
    """Where it can be made: `login`, `node` (the job's preflight), `image`, `network`."""
    what: str


CATALOGUE = (
    Check("config", ("login",), "the job file and its site go together"),
    Check("site", ("login",), "which site this machine is taken for"),
    Check(
        "rt.found",
        ("login", "node"),
        "the container runtime is there and runs; setuid or user namespaces, and /dev/fuse",
    ),
    Check("rt.flags", ("login",), "options of the container that this version has, and that hide"),
    Check("rt.start", ("node", "image"), "the container starts"),
    Check(
        "img.local",
        ("login", "node"),
        "the image is a whole, readable file on a file system that all nodes see, and no URI",
    ),
    Check("img.arch", ("login", "node"), "the image is for the architecture of the nodes"),
    Check("img.python", ("node", "image"), "the Python in it is new enough, and has torch"),
    Check("img.meta", ("image",), "torch, CUDA and NVIDIA's release of the image"),
    Check("cache", ("login",), "where the runtime puts what it downloads and unpacks"),
    Check("bind", ("login", "node"), "what is to be mounted is there, on every node"),
    Check("data", ("login", "node"), "the data set is where the job looks for it"),
    Check("program", ("node",), "your own program is there inside"),
    Check("cwd", ("login",), "the working directory can be seen inside"),
    Check("run.dir", ("node",), "every node sees the run directory"),
    Check("fs", ("login", "node"), "the run directory can be written, with room for checkpoints"),
    Check("tmp", ("login", "node"), "temporary files can be written"),
    Check("shm", ("node",), "shared memory for loader processes and NCCL"),
    Check("env.leak", ("login",), "variables of your shell that would reach into the container"),
    Check("env.value", ("login",), "options of the container that lose or evaluate a value"),
    Check("env.masked", ("node", "image"), "variables that the image sets over the script's"),
    Check("env.libs", ("node",), "the image's LD_LIBRARY_PATH is kept"),
    Check("usersite", ("node", "image"), "packages in ~/.local stay out"),
    Check("py.path", ("node", "image"), "nothing comes before the image's packages"),
    Check("gpu.count", ("node", "image"), "the GPUs that were asked for can be seen"),
    Check("gpu.driver", ("login", "node", "image"), "the driver runs the image's CUDA"),
    Check("gpu.alloc", ("node", "image"), "memory can be had on every GPU, and a product computed"),
    Check("cpu.affinity", ("node",), "the ranks have the cores that were asked for"),
    Check("limits", ("node",), "enough files may be open"),
    Check("rank", ("node",), "the launcher's variables say what the script started"),
    Check("mpi", ("node",), "the MPI of host and image go together (`launch.mpi`)"),
    Check("net.name", ("node",), "MASTER_ADDR is the first node, for every node"),
    Check("net.port", ("node",), "MASTER_PORT is free, and no ephemeral port"),
    Check("net.reach", ("node",), "every node reaches the first one there"),
    Check("net.if", ("node",), "interfaces that NCCL and gloo are told to use exist"),
    Check("net.ib", ("node",), "InfiniBand can be used from inside"),
    Check("net.nccl", ("network",), "an all-reduce over all nodes: bandwidth and transport"),
    Check("code", ("node",), "every node sees the same copy of the code"),
    Check("clock", ("node",), "the nodes' clocks agree"),
    Check("sched", ("login",), "the scheduler answers, and has the queue, the nodes and the time"),
    Check("secrets", ("login",), "no token or password in the job file"),
)


def table() -> str:
    """The table of docs/doctor.md."""
    lines = ["| check | where | what |", "|---|---|---|"]
    lines += [f"| `{c.id}` | {', '.join(c.places)} | {c.what} |" for c in CATALOGUE]
    return "\n".join(lines)


def document(text: str) -> str:
    """The document with its table as it should be."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main() -> None:
    """Write the table, or with `--check` fail where it is not what it should be."""
    path = Path(__file__).resolve().parents[2] / "docs" / "doctor.md"
    text = path.read_text()
    if "--check" not in sys.argv[1:]:
        path.write_text(document(text))
    elif document(text) != text:
        sys.exit(f"{path} is out of date: python -m hpc_amp.doctor.catalogue")


if __name__ == "__main__":
    main()
