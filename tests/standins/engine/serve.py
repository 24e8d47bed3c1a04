"""Starts a server: `serve.py KIND FOLDER`. Ends when the server listens, which goes on alone."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine.cobalt_server import CobaltServer
from engine.folder import Folder
from engine.nodes import identity
from engine.pbs_server import PbsServer

SERVERS = {server.kind: server for server in (CobaltServer, PbsServer)}


def main(kind: str, path: str) -> None:
    """Become a daemon, and serve."""
    folder = Folder(path)
    listener = folder.listen()
    listener.set_inheritable(False)
    if os.fork() > 0:
        return
    os.setsid()
    # Not those of a command that has just been started: they would be the jobs' as well.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if os.fork() > 0:
        os._exit(0)
    try:
        part = folder.path / "server.part"
        part.write_text(json.dumps(identity(os.getpid())))
        part.replace(folder.path / "server.pid")
        SERVERS[kind](folder).run(listener)
    except BaseException:
        # Every command says so from now on, and ending the stand-in fails: nothing hides a defect.
        (folder.path / "crash").write_text(traceback.format_exc())
    finally:
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
