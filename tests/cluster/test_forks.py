"""The interpreter of `support.warm_python` in a container on a node of the test cluster."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from support.cluster import SCRIPTS, Cluster

pytestmark = pytest.mark.cluster

LOOK = """
import json, os, socket, sys

with open("/proc/net/fib_trie") as routes:
    addresses = {line.split()[-1] for line in routes if line.split()[-1].startswith("10.77.0.")}
namespaces = {name: os.readlink(f"/proc/self/ns/{name}") for name in ("ipc", "mnt", "net", "uts")}
seen = [socket.gethostname(), sorted(addresses), sorted(os.listdir("/")), os.getcwd(), namespaces]
print(json.dumps([*seen, sys.executable, "torch" in sys.modules]))
"""


def test_a_fork_sees_what_a_process_sees(warm_cluster: Cluster, tmp_path: Path) -> None:
    """The node's name and addresses, and the container's files."""
    (tmp_path / "hpc_amp").mkdir()
    (tmp_path / "hpc_amp" / "__init__.py").touch()  # else an installed package comes first
    for name in ("process", "train"):
        (tmp_path / "hpc_amp" / f"{name}.py").write_text(LOOK)
    both = '"$0" -m hpc_amp.process && "$0" -m hpc_amp.train'
    words = ["env", f"PATH={warm_cluster.environ['PATH']}", f"PYTHONPATH={tmp_path}"]
    words += ["apptainer", "exec", "--no-eval", "--pwd", str(tmp_path)]
    for folder in (*warm_cluster.binds, str(tmp_path)):
        words += ["-B", folder]
    words += [warm_cluster.image, "sh", "-c", both, warm_cluster.python]

    said = warm_cluster.run(str(SCRIPTS / "rsh-agent"), "n2", shlex.join(words), cwd=tmp_path)

    process, fork = map(json.loads, said.stdout.splitlines())
    assert (process.pop(), fork.pop()) == (False, True)
    assert fork == process
    assert fork[:2] == ["n2", ["10.77.0.0", "10.77.0.12", "10.77.0.255"]]
    assert "singularity" in fork[2]
