"""The list of all checks of `hpc-amp doctor` and of the preflight.

python -m hpc_amp.doctor.catalogue            # writes the table in docs/doctor.md
python -m hpc_amp.doctor.catalogue --check    # fails if the table is out of date
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

BEGIN = "<!-- table: python -m hpc_amp.doctor.catalogue -->"
END = "<!-- end of the table -->"


@dataclass(frozen=True, slots=True)
class Check:
    """A check. `id` is also the id of its findings."""

    id: str
    places: tuple[str, ...]
    """Where the check is made: `login`, `node` (preflight), `image` or `network`."""
    what: str
    """What is true if the check passes."""


CATALOGUE = (
    Check("config", ("login",), "the job file is valid for its site"),
    Check("site", ("login",), "shows which site was chosen for this machine"),
    Check(
        "rt.found",
        ("login", "node"),
        "the container runtime is installed and works: setuid or user namespaces, and /dev/fuse",
    ),
    Check(
        "rt.flags",
        ("login",),
        "this version of the runtime has the options in `container.args`, and none of them hides "
        "files or variables that the job needs",
    ),
    Check("rt.start", ("node", "image"), "the container starts"),
    Check(
        "img.local",
        ("login", "node"),
        "the image is a complete, readable file (no URI) on a file system that all nodes see",
    ),
    Check("img.arch", ("login", "node"), "the image is for the architecture of the nodes"),
    Check("img.python", ("node", "image"), "the image has a Python that is new enough, and torch"),
    Check("img.meta", ("image",), "shows torch, CUDA and NVIDIA's release of the image"),
    Check("cache", ("login",), "the folders for the runtime's downloads and unpacked files fit"),
    Check("bind", ("login", "node"), "the paths to be mounted exist on every node"),
    Check("data", ("login", "node"), "the data set is in the folder that the job reads"),
    Check("program", ("login", "node"), "your own program exists in the container"),
    Check("cwd", ("login",), "the working directory is visible in the container"),
    Check("run.dir", ("node",), "every node sees the run directory"),
    Check("fs", ("login", "node"), "the run directory is writable and has space for checkpoints"),
    Check("tmp", ("login", "node"), "temporary files can be written"),
    Check("shm", ("node",), "there is enough shared memory for loader processes and NCCL"),
    Check("env.leak", ("login",), "no variable of your shell disturbs the container"),
    Check("env.value", ("login",), "no option in `container.args` loses or evaluates a value"),
    Check("env.masked", ("node", "image"), "the image does not replace variables of the job"),
    Check("env.libs", ("node",), "LD_LIBRARY_PATH of the image is kept"),
    Check("usersite", ("node", "image"), "Python does not use packages in ~/.local"),
    Check("py.path", ("node", "image"), "no other packages come before those of the image"),
    Check("trackers", ("node",), "the packages of `train.trackers` are there"),
    Check("gpu.count", ("node", "image"), "the requested GPUs are visible"),
    Check("gpu.driver", ("login", "node", "image"), "the driver supports the image's CUDA"),
    Check(
        "gpu.alloc", ("node", "image"), "every GPU can allocate memory and compute a matrix product"
    ),
    Check("cpu.affinity", ("node",), "the ranks may use the requested cores"),
    Check("limits", ("node",), "the limit of open files is high enough"),
    Check("rank", ("node",), "the launcher's variables agree with the ranks that were started"),
    Check("mpi", ("node",), "the MPI of the host works with the MPI of the image (`launch.mpi`)"),
    Check("net.name", ("node",), "every node resolves MASTER_ADDR to the first node"),
    Check("net.port", ("node",), "MASTER_PORT is free and is not an ephemeral port"),
    Check("net.reach", ("node",), "every node can connect to the first node on MASTER_PORT"),
    Check("net.if", ("node",), "the interfaces that are set for NCCL and gloo exist"),
    Check("net.ib", ("node",), "the container can use InfiniBand"),
    Check("net.nccl", ("network",), "measures an all-reduce over all nodes: bandwidth, transport"),
    Check("code", ("node",), "every node sees the same copy of the code"),
    Check("clock", ("node",), "the nodes' clocks agree"),
    Check("sched", ("login",), "the scheduler answers, and queue, nodes and walltime are possible"),
    Check("secrets", ("login",), "no token or password in the job file"),
)


def table() -> str:
    """Return the table of docs/doctor.md as Markdown."""
    lines = ["| check | where | what |", "|---|---|---|"]
    lines += [f"| `{c.id}` | {', '.join(c.places)} | {c.what} |" for c in CATALOGUE]
    return "\n".join(lines)


def document(text: str) -> str:
    """Return the text of docs/doctor.md with a new table."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main() -> None:
    """Write the table; with `--check`, exit with 1 if it is out of date."""
    path = Path(__file__).resolve().parents[2] / "docs" / "doctor.md"
    text = path.read_text()
    if "--check" not in sys.argv[1:]:
        path.write_text(document(text))
    elif document(text) != text:
        sys.exit(f"{path} is out of date: python -m hpc_amp.doctor.catalogue")


if __name__ == "__main__":
    main()
