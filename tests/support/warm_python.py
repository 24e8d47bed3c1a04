"""A Python for jobs on this machine and on the nodes of the test cluster. Its trainings are forks
of a process that has imported torch.

    made = WarmPython(folder)
    hpc_amp("submit", "job.yaml", f"container.python={made.python}")

`made.python` is an interpreter like that of the tests, but for the modules in `PROGRAMS` and for
`python -u SCRIPT.py`, as which torchrun starts the ranks of a script. There it passes its
arguments, environment, folder and files to a fork, passes signals on, and ends as the fork ends;
where it is killed, so is the fork. The fork imports all of hpc-amp itself, from the run's own
`src`. For tests of what trainings do, not of how they start.

The interpreter may run on a node of the test cluster, and in a container of Apptainer: the fork
enters its namespaces, and so has the node's name and addresses, and the container's files. The
container has to bind the folder. Its processes have to be visible on the host, and it may have no
user namespace.

Run as a program, this file is one of the two sides: `serve SOCKET`, or `run SOCKET WORDS`, the
interpreter in its special case, for which only the standard library is there.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import importlib.util
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, NoReturn

PROGRAMS = (
    *("hpc_amp.train", "hpc_amp.train.generate", "hpc_amp.distributed.bandwidth"),
    "torch.distributed.run",
)
_PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class WarmPython:
    """Makes the interpreter in a folder, and starts the process that forks."""

    def __init__(self, folder: Path) -> None:
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        self._socket = folder / "socket"
        self._program = folder / "warm_python.py"
        # A container has no other file of the tests.
        self._program.write_text(Path(__file__).read_text())
        self.python = self.interpreter(folder)
        words = [self.python, self._program, "serve", self._socket]
        self._server = subprocess.Popen(words, env=environ)
        while not self._socket.exists():
            assert self._server.poll() is None
            time.sleep(0.05)

    def interpreter(self, folder: Path, *more: str) -> Path:
        """Makes an interpreter in a folder. What it forks are the modules in `PROGRAMS`, and the
        command lines that fit the shell patterns `more`.

        It is that of a virtual environment with the packages of this one. Python knows it by the
        first word of its command line, and so does what asks for `sys.executable`."""
        real = Path(sys.prefix)
        (folder / "bin").mkdir(parents=True)
        (folder / "lib").symlink_to(real / "lib")
        (folder / "pyvenv.cfg").write_text((real / "pyvenv.cfg").read_text())
        cases = [f'"-m {name}"|"-m {name} "*|*"/src -m {name} "*' for name in PROGRAMS]
        cases += ['"-u "*.py', '"-u "*.py" "*']
        client = f'-I -S "{self._program}" run "{self._socket}"'
        python = folder / "bin" / "python"
        python.write_text(
            "#!/bin/bash\n"
            f'case "$*" in {"|".join([*cases, *more])})\n'
            f'  exec -a "$0" "{sys.executable}" {client} "$@" ;;\n'
            "esac\n"
            f'exec -a "$0" "{sys.executable}" "$@"\n'
        )
        python.chmod(0o755)
        return python

    def close(self) -> None:
        """End the process that forks."""
        self._server.terminate()
        self._server.wait()


# ---- the interpreter -----------------------------------------------------------------------------


def run(path: str, words: list[str]) -> int:
    """Let a fork be `python WORDS`. Returns its exit status; ends by a signal where it did."""
    request = {"words": words, "cwd": os.getcwd(), "environ": dict(os.environ)}
    request["executable"] = sys.executable
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.connect(path)
        text = json.dumps(request).encode()
        socket.send_fds(server, [len(text).to_bytes(8, "big")], [0, 1, 2])
        # The fork is not there before it can be told of a signal.
        signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
        server.sendall(text)
        answers = server.makefile()
        pid = int(answers.readline())
        for number in _PASSED_ON:
            signal.signal(number, lambda number, _: _tell(pid, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        status = int(answers.readline())
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def _tell(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


# ---- the process that forks ----------------------------------------------------------------------


def serve(path: str) -> NoReturn:
    """Fork for each connection, answer with the fork's process number, and with its status once it
    has ended."""
    for name in ("torch._dynamo", "torch.utils.tensorboard", "torchvision", PROGRAMS[-1]):
        importlib.import_module(name)
    _keep_compiled("hpc_amp")
    installed = [entry for entry in sys.path if entry != str(Path(__file__).parent)]
    gc.freeze()  # a collection in a fork would copy what it looks at
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(f"{path}.part")
    listening.listen(100)
    os.rename(f"{path}.part", path)
    events = selectors.DefaultSelector()
    events.register(listening, selectors.EVENT_READ)
    while True:
        key, _ = events.select()[0]  # it may change what the others mean
        if key.fileobj is listening:
            _start(listening, events, installed)
        elif isinstance(key.fileobj, socket.socket):  # it has nothing to say, so it has ended
            events.unregister(key.fileobj)
            os.kill(key.data, signal.SIGKILL)
        else:
            _report(events, *key.data)


def _keep_compiled(package: str) -> None:
    """Compile a package for all forks, which import copies of it: the `src` of their runs, where
    no module was compiled yet. A module with another text is compiled by the fork."""
    found = importlib.util.find_spec(package)
    assert found is not None
    known = {}
    for folder in found.submodule_search_locations or []:
        for file in Path(folder).rglob("*.py"):
            known[file.read_bytes()] = SourceFileLoader("", str(file)).get_code("")
    compile_it = SourceFileLoader.source_to_code

    def source_to_code(self: SourceFileLoader, data: bytes, path: str, **more: Any) -> CodeType:
        code = known.get(data)
        return compile_it(self, data, path, **more) if code is None else _renamed(code, path)

    SourceFileLoader.source_to_code = source_to_code  # type: ignore[method-assign]


def _renamed(code: CodeType, path: str) -> CodeType:
    """Code as if it were compiled from another file."""
    constants = (
        _renamed(one, path) if isinstance(one, CodeType) else one for one in code.co_consts
    )
    return code.replace(co_filename=path, co_consts=tuple(constants))


def _start(listening: socket.socket, events: selectors.BaseSelector, installed: list[str]) -> None:
    client, _ = listening.accept()
    size, files, _, _ = socket.recv_fds(client, 8, 3)
    length = int.from_bytes(size, "big")
    with client.makefile("rb") as text:
        given = text.read(length)
    if not given or len(given) < length:  # the client was killed before it had asked
        for file in files:
            os.close(file)
        client.close()
        return
    request = json.loads(given)
    credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    asked_by, _, _ = struct.unpack("3i", credentials)
    pid = os.fork()
    if pid == 0:
        _become(request, files, installed, asked_by)
    for file in files:
        os.close(file)
    with contextlib.suppress(OSError):  # a client that was killed meanwhile takes its fork along
        client.sendall(b"%d\n" % pid)
    ended = os.pidfd_open(pid)
    events.register(ended, selectors.EVENT_READ, (pid, ended, client))
    events.register(client, selectors.EVENT_READ, pid)


def _report(events: selectors.BaseSelector, pid: int, ended: int, client: socket.socket) -> None:
    """Tell the client how its fork has ended."""
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    events.unregister(ended)
    os.close(ended)
    if client in {key.fileobj for key in events.get_map().values()}:
        events.unregister(client)
        with contextlib.suppress(OSError):
            client.sendall(b"%d\n" % status)
    client.close()


def _enter(pid: int) -> None:
    """Enter the namespaces and the root folder of the process that asked."""
    import ctypes  # the interpreter does without

    libc = ctypes.CDLL(None, use_errno=True)
    joined = []
    for name in ("net", "uts", "ipc", "mnt"):  # the last one changes what /proc is
        theirs = f"/proc/{pid}/ns/{name}"
        if os.readlink(theirs) != os.readlink(f"/proc/self/ns/{name}"):
            joined.append(os.open(theirs, os.O_RDONLY))
    if not joined:
        return
    root = os.open(f"/proc/{pid}/root", os.O_RDONLY | os.O_DIRECTORY)
    for namespace in joined:
        if libc.setns(namespace, 0) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.fchdir(root)
    os.chroot(".")


def _become(
    request: dict[str, Any], files: list[int], installed: list[str], asked_by: int
) -> NoReturn:
    """The program, in a process with the client's files, namespaces, variables and folder."""
    for number, file in enumerate(files):
        os.dup2(file, number)
    _enter(asked_by)
    os.closerange(3, 256)
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["cwd"])
    sys.executable = request["executable"]
    words = [word for word in request["words"] if word != "-u"]
    search = [entry for entry in os.environ.get("PYTHONPATH", "").split(":") if entry]
    sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    try:
        if words[0] == "-m":
            sys.path[:] = [os.getcwd(), *search, *installed]
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            program = Path(words[0]).resolve()
            sys.path[:] = [str(program.parent)] * program.is_file() + [*search, *installed]
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    sys.exit(run(sys.argv[2], sys.argv[3:]))
