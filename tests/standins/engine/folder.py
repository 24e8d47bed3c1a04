"""The folder of one server: its configuration, its socket, and how commands reach it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

VARIABLE = "HPC_AMP_STANDIN_DIR"
ENGINE = Path(__file__).resolve().parent

Message = dict[str, Any]


def _read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


class ServerDown(Exception):
    """The server is configured to be down, or does not answer."""


class Folder:
    """Everything that a server keeps lies in here; two folders are two clusters."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.json"
        self.spool = self.path / "spool"
        self.log = self.path / "server.log"

    @classmethod
    def of_this_command(cls, program: str) -> Folder:
        """The folder that the environment names."""
        name = os.environ.get(VARIABLE)
        if not name:
            sys.exit(f"{program} (stand-in): {VARIABLE} does not name the folder of a server")
        return cls(name)

    def config(self, defaults: Message) -> Message:
        """The settings that the folder's file makes, on top of the defaults."""
        unknown: set[str] = set()
        settings: Message = {}
        if self.config_file.exists():
            settings = json.loads(self.config_file.read_text())
            unknown = settings.keys() - defaults.keys()
        if unknown:
            raise ValueError(f"{self.config_file}: unknown settings {sorted(unknown)}")
        return {**defaults, **settings}

    # ---- the socket ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _short_name(self) -> Iterator[str]:
        # A socket's path has 107 bytes at most, and folders of tests are often longer. Not an
        # abstract socket: those belong to a network namespace, and jobs live in others.
        handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield f"/proc/self/fd/{handle}/socket"
        finally:
            os.close(handle)

    def listen(self) -> socket.socket:
        """The server's end."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(FileNotFoundError):
            (self.path / "socket").unlink()
        with self._short_name() as name:
            listener.bind(name)
        listener.listen(64)
        return listener

    def _connect(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with self._short_name() as name:
                connection.connect(name)
        except OSError:
            connection.close()
            return None
        return connection

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Held while a server starts, so that there is one."""
        with (self.path / "lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def serve(self, run: Callable[[], object]) -> socket.socket:
        """A connection to the server, which `run` starts where there is none: it runs `serve.py`,
        which ends when the server listens."""
        with self.lock():
            connection = self._connect()
            if connection is not None:
                return connection
            run()
            connection = self._connect()
            if connection is None:
                raise ServerDown(f"the stand-in's server did not start:\n{self.log.read_text()}")
            return connection

    def _run_server(self, kind: str) -> None:
        import subprocess  # only needed here

        with self.log.open("ab") as log:
            subprocess.run(
                [sys.executable, "-I", "-S", ENGINE / "serve.py", kind, self.path],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                check=False,
            )

    def check(self) -> None:
        """Raise where the server broke down: that is a defect of the stand-in."""
        crash = self.path / "crash"
        if crash.exists():
            raise RuntimeError(f"the stand-in's server broke down:\n{crash.read_text()}")

    def ask(self, kind: str, request: Message, *, start: bool = True) -> Message:
        """The server's answer. It is started where it does not run, unless told not to."""
        for _ in range(20):
            self.check()
            connection = self._connect()
            if connection is None:
                if not start:
                    raise ServerDown("not running")
                connection = self.serve(lambda: self._run_server(kind))
            with connection:
                try:
                    connection.sendall(json.dumps(request).encode() + b"\n")
                    answer = _read_all(connection)
                except OSError:
                    answer = b""
            if answer:
                return json.loads(answer)
            time.sleep(0.05)  # it was ending just then
        raise ServerDown(f"no answer to {request}")
