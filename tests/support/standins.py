"""Stand-ins of Cobalt and PBS as tests use them: one server and its commands, in a folder.

    with PbsStandIn(tmp_path / "pbs", history=True) as pbs:
        pbs.run("qsub", "-l", "walltime=60", "job.sh")

`environ()` is the environment of a shell that submits: its PATH begins with the commands.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

from support.environment import LOGOUT, REPOSITORY, clean_environ
from support.waiting import wait_until
from support.warm import Warm

STANDINS = REPOSITORY / "tests" / "standins"
sys.path.insert(0, str(STANDINS))

from engine import pbs_options as pbs_options  # noqa: E402
from engine.folder import Folder, ServerDown  # noqa: E402
from engine.nodes import identity, lives  # noqa: E402

CLUSTER_NODES = ("n1", "n2", "n3", "n4")

OPEN_MPI = {
    "OMPI_MCA_plm_rsh_agent": str(REPOSITORY / "tests" / "cluster" / "rsh-agent"),
    "OMPI_MCA_oob_tcp_if_include": "10.77.0.0/24",
    "OMPI_MCA_btl_tcp_if_include": "10.77.0.0/24",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    # Where a hostfile has no slots, mpirun takes the cores of this machine for those of a node.
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}
"""`login_environment` of a site whose mpirun reaches the nodes of the test cluster."""


def cluster_has_nodes() -> bool:
    """Whether jobs can run in the network namespaces of the test cluster."""
    there = all(Path(f"/run/netns/{name}").exists() for name in CLUSTER_NODES)
    return there and os.getuid() == 0


class StandIn:
    """A server of its own, with folders for its users: `home`, and `work` to submit from.

    Settings are those of the server (`DEFAULTS` in tests/standins/engine), less its delays: those
    are short unless given. Jobs run on this machine, unless `local_nodes=False` is given: then in
    the network namespaces of the test cluster."""

    kind: ClassVar[str]
    commands: ClassVar[tuple[str, ...]]
    _quick: ClassVar[dict[str, Any]]

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        """To be first on PATH: the stand-in's commands, which know this server."""
        self.home = folder / "home"
        self.work = folder / "work"
        self.state = folder / "server"
        """What the server keeps."""
        for made in (self.bin, self.home, self.work, self.state):
            made.mkdir(parents=True)
        (self.home / ".bash_logout").write_text(LOGOUT)
        for name in self.commands:
            # The commands find their server without a variable, so that they do so in jobs as well,
            # and in whatever environment a program gives them.
            wrapper = self.bin / name
            wrapper.write_text(
                "#!/bin/sh\n"
                f"HPC_AMP_STANDIN_DIR={_quote(self.state)}; export HPC_AMP_STANDIN_DIR\n"
                f"exec {_quote(sys.executable)} -I -S {_quote(STANDINS / self.kind / name)} "
                '"$@"\n'
            )
            wrapper.chmod(0o755)
        self._settings = {
            "local_nodes": True,
            "home": str(self.home),
            "path": [str(self.bin)],
            "owner": identity(os.getpid()),
            **self._quick,
        }
        self.config(**settings)

    def config(self, **settings: Any) -> None:
        """Change settings of the server, from now on."""
        self._settings |= settings
        part = self.state / "config.part"
        part.write_text(json.dumps(self._settings))
        part.replace(self.state / "config.json")

    def __enter__(self) -> StandIn:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- what a user does ------------------------------------------------------------------------

    def environ(self, **more: str) -> dict[str, str]:
        """Of a shell that submits to this server."""
        environ = clean_environ(**more)
        return {**environ, "PATH": f"{self.bin}:{environ['PATH']}"}

    def run(
        self, *command: str, cwd: Path | None = None, text: str | None = None, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Any command in that environment, with `text` as its input. A command of the stand-in is
        a fork, unless it has input."""
        environ = self.environ(**environ)
        if command[0] in self.commands and text is None:
            self.serve()
            program = STANDINS / self.kind / command[0]
            environ["HPC_AMP_STANDIN_DIR"] = str(self.state)
            return _forks().run_with(environ, program, *command[1:], cwd=cwd or self.work)
        return subprocess.run(
            command,
            cwd=cwd or self.work,
            env=environ,
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            text=True,
            errors="surrogateescape",
            capture_output=True,
            timeout=300,
        )

    def script(self, text: str, name: str = "job.sh") -> Path:
        """An executable file in `work`."""
        path = self.work / name
        path.write_bytes(text.encode(errors="surrogateescape"))
        path.chmod(0o755)
        return path

    # ---- what an administrator does --------------------------------------------------------------

    def serve(self) -> None:
        """Let the server run, as a fork: a command would start it from the beginning."""
        if self._settings.get("down") or self._server() is not None:
            return
        program = STANDINS / "engine" / "serve.py"
        run = functools.partial(_forks().run, program, self.kind, self.state, cwd=Path("/"))
        Folder(self.state).serve(run).close()

    def ask(self, operation: str, **more: Any) -> dict[str, Any]:
        """A request to the server itself."""
        self.serve()
        return Folder(self.state).ask(self.kind, {"op": operation, **more})

    def jobs(self) -> dict[str, dict[str, Any]]:
        """The server's own view of the jobs that it shows, by id."""
        return {job["id"]: job for job in self.ask("list")["jobs"]}

    def lose_node(self, name: str) -> None:
        """The node dies, with all processes of jobs that began on it."""
        self.ask("lose_node", node=name)

    def stop(self) -> None:
        """End the server and every process of its jobs. Returns when they are gone."""
        server = self._server()
        with contextlib.suppress(ServerDown):
            Folder(self.state).ask(self.kind, {"op": "stop"}, start=False)
        if server is not None:
            wait_until(lambda: not lives(server), "the stand-in's server to end")
        Folder(self.state).check()

    def server_pid(self) -> int:
        """The process id of the server, which runs."""
        server = self._server()
        assert server is not None
        return server[0]

    def _server(self) -> list[int] | None:
        """The identity of the server, if it runs."""
        try:
            server: list[int] = json.loads((self.state / "server.pid").read_text())
        except FileNotFoundError:
            return None
        return server if lives(server) else None


class CobaltStandIn(StandIn):
    """A stand-in of Cobalt 1.0.33: `run_remote=True` (the default) or `False`."""

    kind = "cobalt"
    commands = ("qsub", "qstat", "qdel", "qhold", "qrls", "qalter", "cqwait")
    _quick: ClassVar[dict[str, Any]] = {
        "start_delay": 0.05,
        "linger": 0.1,
        "log_delay": 0.3,
        "epilogue_delay": 1.0,
        "force_kill_delay": 3.0,
        "dependency_delay": 0.2,
    }


class PbsStandIn(StandIn):
    """A stand-in of OpenPBS 23.06: `history=False` (the default, as the real one's) or `True`."""

    kind = "pbs"
    commands = ("qsub", "qstat", "qdel", "qsig", "qhold", "qrls", "qrerun")
    _quick: ClassVar[dict[str, Any]] = {
        "start_delay": 0.05,
        "kill_delay": 3.0,
        "walltime_lateness": 0.1,
        "poll": 0.1,
        "stageout_delay": 0.05,
        "stageout_retries": 0.3,
        "node_fail_requeue": 0.5,
    }

    def rerun(self, job_id: str) -> None:
        """What an operator's qrerun does."""
        self.ask("rerun", id=job_id)

    def restore_node(self, name: str) -> None:
        """A lost node is back."""
        self.ask("restore_node", node=name)


@functools.cache
def _forks() -> Warm:
    """The process that forks commands and servers of the stand-ins."""
    made = Warm("standins", {})
    atexit.register(made.close)
    return made


def _quote(path: Path | str) -> str:
    import shlex

    return shlex.quote(str(path))
