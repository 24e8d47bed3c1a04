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

Run as a program (`python warm_python.py FOLDER`), this file is the process that forks. What asks it
is `support.warm_client`, which `tests/run` uses, too: the parts of the tests are forks of one such
process.
"""

from __future__ import annotations

import _imp
import atexit
import contextlib
import ctypes
import gc
import importlib
import marshal
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
import weakref
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, NoReturn

PROGRAMS = (
    *("hpc_amp.train", "hpc_amp.train.generate", "hpc_amp.distributed.bandwidth"),
    "torch.distributed.run",
)
SHARED = "HPC_AMP_WARM"
"""The variable with the folder of the process that forks for all parts of `make test`."""
CLIENT = "warm_client.py"
_HERE = Path(__file__).resolve().parent
_PACKAGE = _HERE.parents[1] / "hpc_amp"


class WarmPython:
    """Makes interpreters, and starts the process that forks, unless `tests/run` has started one."""

    def __init__(self, folder: Path) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        if SHARED in os.environ:
            self.home = Path(os.environ[SHARED])
        else:
            self.home = folder
            environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            words = [sys.executable, Path(__file__), self.home]
            self._server = subprocess.Popen(words, env=environ, start_new_session=True)
            while not self.socket.exists():
                assert self._server.poll() is None
                time.sleep(0.05)
        self.python = self.interpreter(folder)

    @property
    def socket(self) -> Path:
        """Where the process that forks is asked."""
        return self.home / "socket"

    @property
    def fork(self) -> list[str | Path]:
        """The words that begin a command line instead of `python`, for a fork."""
        return [sys.executable, "-I", "-S", self.home / CLIENT, self.socket]

    def interpreter(self, folder: Path, *more: str) -> Path:
        """Makes an interpreter in a folder. What it forks are the modules in `PROGRAMS`, and the
        command lines that fit the shell patterns `more`.

        It is that of a virtual environment with the packages of this one. Python knows it by the
        first word of its command line, and so does what asks for `sys.executable`."""
        real = Path(sys.prefix)
        (folder / "bin").mkdir(parents=True)
        (folder / "lib").symlink_to(real / "lib")
        (folder / "pyvenv.cfg").write_text((real / "pyvenv.cfg").read_text())
        cases = [
            f'"-m {name}"|"-m {name} "*|*"/src -m {name}"|*"/src -m {name} "*' for name in PROGRAMS
        ]
        cases += ['"-u "*.py', '"-u "*.py" "*']
        client = f'-I -S "{self.home / CLIENT}" "{self.socket}"'
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
        """End the process that forks, if it is ours."""
        if self._server is not None:
            self._server.terminate()
            self._server.wait()


# ---- the process that forks ----------------------------------------------------------------------


def serve(folder: Path) -> NoReturn:
    """Fork for each connection, answer with the fork's process number, and with its status once it
    has ended. The folder gets the socket, and the client's program: a container has no other file
    of the tests."""
    (folder / CLIENT).write_text((_HERE / CLIENT).read_text())
    os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")  # which torch reads
    for name in ("torch._dynamo", "torch.utils.tensorboard", "torchvision", PROGRAMS[-1]):
        importlib.import_module(name)
    installed = [entry for entry in sys.path if entry != str(_HERE)]
    _know_the_code_of(_PACKAGE)
    prepare_to_fork()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(folder / "part"))
    listening.listen(100)
    os.rename(folder / "part", folder / "socket")
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


def prepare_to_fork() -> None:
    """Make forks of this process cheap. A collection of garbage in one would copy what it looks at,
    so it leaves out what is here now. Each fork copies the table of the pages, which is small where
    they are of 2 MiB: the memory moves into such ones, as far as the kernel can (Linux 6.1)."""
    gc.freeze()
    libc, huge, collapse = ctypes.CDLL(None), 2 << 20, 25
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, access, *_, name = line.split()
        if access == "rw-p" and name in ("0", "[heap]"):  # no file's
            first, end = (int(address, 16) for address in where.split("-"))
            first, end = -(-first // huge) * huge, end // huge * huge
            if first < end:
                libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), collapse)


def _know_the_code_of(package: Path) -> None:
    """Let forks take the code of a module from memory if its file is one of `package`: each run has
    a copy of its own, which would be compiled anew."""
    known: dict[bytes, CodeType] = {}
    for file in package.rglob("*.py"):
        code = SourceFileLoader(file.stem, str(file)).get_code(file.stem)
        assert code is not None
        known[file.read_bytes()] = code
    compiled = SourceFileLoader.source_to_code

    def source_to_code(self: SourceFileLoader, data: bytes, path: str, **options: Any) -> CodeType:
        code = known.pop(data, None)
        if code is None:
            return compiled(self, data, path, **options)
        _imp._fix_co_filename(code, path)  # as for what is read from a __pycache__
        return code

    SourceFileLoader.source_to_code = source_to_code  # type: ignore[method-assign,assignment]


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
    request = marshal.loads(given)
    credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    asked_by, _, _ = struct.unpack("3i", credentials)
    # Functions that are called after a fork, and clearings of memory, would swallow an interrupt.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    pid = os.fork()
    if pid == 0:
        _become(request, files, installed, asked_by)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
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
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]  # torch would be taken apart at the end
    os.environ.clear()
    os.environb.update(request["environ"])
    os.chdir(request["cwd"])
    os.nice(request["nice"] - os.nice(0))
    sys.executable = request["executable"]
    words = [word for word in request["words"] if word != "-u"]
    search = [entry for entry in os.environ.get("PYTHONPATH", "").split(":") if entry]
    sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
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
    serve(Path(sys.argv[1]))
