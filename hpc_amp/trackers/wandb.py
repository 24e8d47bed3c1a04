"""Sends curves to Weights & Biases, or writes its offline files to `wandb` in the run directory."""

from __future__ import annotations

import json
import netrc
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import wandb

from hpc_amp.files import write_json
from hpc_amp.trackers import run
from hpc_amp.trackers.run import Point
from hpc_amp.trackers.sender import Sender
from hpc_amp.trackers.wandb_files import rows

if TYPE_CHECKING:
    from torch import Tensor

_CONNECT_SECONDS = 3.0
_INIT_SECONDS = 8.0
"""How long the start of a run may wait for the server. At its end, a process waits for it, too."""
_OLD_MODES = {"dryrun": "offline", "run": "online"}
"""Names that wandb still reads in WANDB_MODE."""


class Wandb(Sender):
    """One run of wandb for one run directory, which all attempts and `hpc-amp export` continue.

    wandb's own variables choose its project, entity, tags and server. Without WANDB_MODE, it is
    offline, unless there are credentials and the server can be reached. A row has the step as
    `step`, which the charts use: wandb refuses rows whose own step does not grow.
    """

    def __init__(self, run_dir: Path, first_step: int) -> None:
        super().__init__(run_dir, first_step)
        self._id = run.identity(run_dir)
        self._mode = choose_mode()
        self._file = run_dir / run.FOLDER / "wandb.json"
        # Offline files and the server have got different rows.
        self._modes: dict[str, Any] = {}
        if self._file.exists():
            self._modes = json.loads(self._file.read_text())
        if self._modes.get("id", self._id) != self._id:  # the directory is a copy
            self._modes = {}
        known = self._modes.get(self._mode, {"rows": 0, "sent": {}})
        self._rows: int = known["rows"]
        self.sent = known["sent"]
        if self._mode == "offline":
            self._read_files()
        self._config: Mapping[str, Any] = {}
        self._run: Any = None
        self.where = "wandb's server"
        if self._mode == "offline":
            folder = run_dir / "wandb"
            self.where = f"{folder} (to send them: wandb sync {folder}/offline-run-*)"

    def _read_files(self) -> None:
        """Add what killed attempts have written. wandb writes its files some seconds late."""
        for row in rows(self.run_dir / "wandb", self._id):
            self._rows = max(self._rows, row["_step"] + 1)
            for name in row:
                self.sent[name] = max(self.sent.get(name, -1), row["step"])

    def configuration(self, config: Mapping[str, Any]) -> None:
        """Keep the settings until there is something to send."""
        self._config = config

    def _open(self) -> Any:
        """The run of wandb. It is opened when there is something to send."""
        if self._run is None:
            name = self._config.get("name") or "hpc-amp"
            self._run = wandb.init(
                id=self._id,
                resume="allow" if self._mode == "online" else None,
                mode=self._mode,
                dir=str(self.run_dir),
                project=os.environ.get("WANDB_PROJECT") or name,
                name=os.environ.get("WANDB_NAME") or f"{name}/{self.run_dir.name}",
                group=os.environ.get("WANDB_RUN_GROUP") or run.group(self.run_dir),
                settings=wandb.Settings(
                    console="off",
                    silent=True,
                    disable_git=True,
                    disable_code=True,
                    init_timeout=_INIT_SECONDS,
                ),
            )
            self._run.config.update(dict(self._config), allow_val_change=True)
            self._run.define_metric("step")
            self._run.define_metric("*", step_metric="step")
        return self._run

    def send(self, points: Sequence[Point]) -> None:
        """Add a row for each point."""
        for point in points:
            self._add({"step": point.step, "_timestamp": point.time, **point.values})

    def _add(self, row: dict[str, Any]) -> None:
        """Add a row. Each attempt continues the numbers of rows, which are wandb's own steps."""
        self._open().log(row, step=self._rows, commit=True)
        self._rows += 1

    def remember(self) -> None:
        """Write down what the server has got."""
        if self._mode != "offline":
            self._write_record()

    def _write_record(self) -> None:
        """Write what has been sent to trackers/wandb.json of the run."""
        self._modes["id"] = self._id
        self._modes[self._mode] = {"rows": self._rows, "sent": self.sent}
        write_json(self._file, self._modes)

    def picture(self, step: int, name: str, picture: Tensor) -> None:
        """Add a picture."""
        if step <= self.sent.get(name, -1):
            return
        pixels = picture.mul(255).clamp(0, 255).byte().permute(1, 2, 0).numpy()
        self._add({"step": step, name: wandb.Image(pixels)})
        self.sent[name] = step
        self.remember()

    def end(self, outcome: str) -> None:
        """Finish the attempt's part of the run. This may wait for the server."""
        if self._run is not None:
            self._run.finish(exit_code=int(outcome == "failed"))
            self._run = None
            self._write_record()  # files that were sent may be removed

    def close(self) -> None:
        """Finish the run, if that has not been done."""
        self.end("finished")


def choose_mode() -> str:
    """WANDB_MODE, or else `online` if there are credentials for the server and it can be reached,
    or else `offline`."""
    asked = os.environ.get("WANDB_MODE")
    if asked:
        return _OLD_MODES.get(asked, asked)
    server = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai")
    host = server.hostname or ""
    if not (os.environ.get("WANDB_API_KEY") or _in_netrc(host)):
        return "offline"
    proxy = os.environ.get(f"{server.scheme}_proxy") or os.environ.get(
        f"{server.scheme.upper()}_PROXY"
    )
    reached = urlsplit(proxy) if proxy else server
    port = reached.port or (443 if reached.scheme == "https" else 80)
    try:
        socket.create_connection((reached.hostname or "", port), _CONNECT_SECONDS).close()
    except OSError:
        return "offline"
    return "online"


def _in_netrc(host: str) -> bool:
    """Whether `wandb login` has stored credentials for a host."""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
