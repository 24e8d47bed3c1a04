"""The server of a folder, without what is special to one scheduler: requests, timers, children."""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import itertools
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from . import nodes
from .folder import Folder, Message

_PR_SET_CHILD_SUBREAPER = 36
_IDLE_SECONDS = 10.0
"""A server that has nothing to do ends; the next command starts one that knows all it knew."""


class Server:
    """Ends with its folder and with its owner, and takes all processes of its jobs along."""

    kind: ClassVar[str]
    defaults: ClassVar[Message]

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.jobs: dict[str, Message] = {}
        self.counter = 0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._watched: dict[int, Callable[[int], None]] = {}
        self._stopping = False
        self._saved = ""
        self._busy_until = time.monotonic() + _IDLE_SECONDS
        self._inode = folder.path.stat().st_ino
        # What a job's processes leave behind becomes a child of this one, not of init: so nothing
        # that was started here can outlive the server.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._load()

    # ---- what a scheduler adds -------------------------------------------------------------------

    def handle(self, request: Message) -> Message:
        """The answer to a request."""
        raise NotImplementedError

    def schedule(self) -> None:
        """Start what can start. Called after whatever may have changed something."""
        raise NotImplementedError

    def active(self) -> bool:
        """Whether there is something to wait for."""
        raise NotImplementedError

    # ---- services --------------------------------------------------------------------------------

    @property
    def config(self) -> Message:
        """The folder's settings, as they are now."""
        return self.folder.config(self.defaults)

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), action))

    def spawn(
        self,
        command: Sequence[str],
        ended: Callable[[int], None],
        *,
        environ: Mapping[str, str],
        cwd: str,
        stdin: int,
        stdout: int,
        stderr: int,
        umask: int = 0o022,
    ) -> int:
        """Start a process in a session of its own; `ended` gets its wait status."""
        process = subprocess.Popen(
            command,
            env=dict(environ),
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            umask=umask,
            start_new_session=True,
        )
        process.returncode = 0  # reaped here, not by subprocess
        self._watched[process.pid] = ended
        return process.pid

    # ---- the main loop ---------------------------------------------------------------------------

    def run(self, listener: socket.socket) -> None:
        """Until told to stop, until the folder is gone, or until there is nothing left to do."""
        wake_read, wake_write = socket.socketpair()
        for end in (wake_read, wake_write):
            end.setblocking(False)
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_stopping", True))
        selector = selectors.DefaultSelector()
        selector.register(listener, selectors.EVENT_READ)
        selector.register(wake_read, selectors.EVENT_READ)
        try:
            while not self._stopping and self._wanted():
                for key, _ in selector.select(self._patience()):
                    if key.fileobj is listener:
                        self._serve(listener)
                    else:
                        with contextlib.suppress(BlockingIOError):
                            wake_read.recv(4096)
                self._reap()
                self._run_timers()
                self.schedule()
                self._save()
                if self.active():
                    self._busy_until = time.monotonic() + _IDLE_SECONDS
                elif time.monotonic() > self._busy_until and self._retire(listener):
                    break
        finally:
            self._kill_all()

    def _patience(self) -> float:
        due = self._timers[0][0] - time.monotonic() if self._timers else 1.0
        return min(max(due, 0.0), 1.0)

    def _wanted(self) -> bool:
        """Whether the folder is still there, and the process that the server is for."""
        try:
            if self.folder.path.stat().st_ino != self._inode:
                return False
        except OSError:
            return False
        owner = self.config["owner"]
        return owner is None or nodes.lives(owner)

    def _retire(self, listener: socket.socket) -> bool:
        # Under the lock, no command starts a server while this one removes its socket.
        with self.folder.lock():
            listener.setblocking(False)
            try:
                self._serve(listener)
            except BlockingIOError:
                (self.folder.path / "socket").unlink(missing_ok=True)
                return True
            finally:
                listener.setblocking(True)
        return False

    def _serve(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(5)
            try:
                text = b""
                while not text.endswith(b"\n"):
                    part = connection.recv(65536)
                    if not part:
                        return
                    text += part
                request = json.loads(text)
                request["from_job"] = self._comes_from_job(connection)
                if request["op"] == "stop":
                    self._stopping = True
                    self._kill_all()
                    (self.folder.path / "socket").unlink(missing_ok=True)
                    answer: Message = {"pid": os.getpid()}
                else:
                    answer = self.handle(request)
                    self._save()
                connection.sendall(json.dumps(answer).encode())
            except (BrokenPipeError, ConnectionResetError, TimeoutError):
                return  # the command was killed meanwhile

    def _comes_from_job(self, connection: socket.socket) -> bool:
        option = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid = struct.unpack("3i", option)[0]
        try:
            while pid > 1:
                pid = nodes.Process(pid).parent
                if pid == os.getpid():
                    return True
        except (OSError, IndexError):
            pass
        return False

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            ended = self._watched.pop(pid, None)
            if ended is not None:
                ended(status)

    def _run_timers(self) -> None:
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()

    def _kill_all(self) -> None:
        """Until there are none: what is killed may be starting others."""
        for _ in range(100):
            left = nodes.descendants(os.getpid())
            if not left:
                return
            nodes.send(left, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.01)

    # ---- the state file --------------------------------------------------------------------------

    @property
    def _state_file(self) -> Path:
        return self.folder.path / "state.json"

    def _save(self) -> None:
        text = json.dumps({"counter": self.counter, "jobs": self.jobs}, default=str)
        if text == self._saved:
            return
        self._saved = text
        part = self._state_file.with_suffix(".part")
        with contextlib.suppress(FileNotFoundError):  # the folder was removed just now
            part.write_text(text)
            part.replace(self._state_file)

    def _load(self) -> None:
        if self._state_file.exists():
            state = json.loads(self._state_file.read_text())
            self.counter, self.jobs = state["counter"], state["jobs"]


def exit_status(status: int) -> int:
    """A wait status as shells see it: 128 and the signal's number."""
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status)
    return os.WEXITSTATUS(status)


def append_file(path: str, umask: int = 0o022) -> int:
    """A descriptor of a file that is appended to; of /dev/null where it cannot be opened."""
    before = os.umask(umask)
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    finally:
        os.umask(before)


def user_name() -> str:
    """Who runs this server, by the user database and not by the environment."""
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name
