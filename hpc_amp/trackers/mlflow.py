"""Sends curves to MLflow: to a server, or to files in the folder `mlruns` of the run."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hpc_amp.trackers import run
from hpc_amp.trackers.run import Point
from hpc_amp.trackers.secret import without_passwords
from hpc_amp.trackers.sender import Sender

# Before the import of mlflow, which reads it: its files need a permission of their own.
if urlsplit(os.environ.get("MLFLOW_TRACKING_URI", "")).scheme in ("", "file"):
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

if TYPE_CHECKING:
    from torch import Tensor

_TAG = "hpc_amp.run"
_METRICS, _PARAMS, _LENGTH = 1000, 100, 500
"""What MLflow takes in one request, and how long the value of a parameter may be."""
_STATUS = {"finished": "FINISHED", "checkpointed": "SCHEDULED", "failed": "FAILED"}
_NOT_IN_NAMES = re.compile(r"[^\w./ :-]")


class Mlflow(Sender):
    """One run of MLflow for one run directory, which all attempts and `hpc-amp export` continue.

    MLflow's own variables choose the server (MLFLOW_TRACKING_URI) and the experiment
    (MLFLOW_EXPERIMENT_NAME). The run of MLflow is found by a tag, and what has been sent is read
    from it, so nothing is sent twice, whatever was interrupted.
    """

    def __init__(self, run_dir: Path, first_step: int) -> None:
        super().__init__(run_dir, first_step)
        self._id = run.identity(run_dir)
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        folder = run_dir.resolve() / "mlruns"
        see = f"mlflow ui --backend-store-uri {shlex.quote(folder.as_uri())}"
        self.where = f"{folder} (to see them: {see}, which needs the whole package mlflow)"
        if uri:
            self.where = without_passwords(uri)
        self._client = MlflowClient(tracking_uri=uri or folder.as_uri())
        self._run_id = ""
        self._params: dict[str, str] = {}
        self._config: Mapping[str, Any] = {}

    def configuration(self, config: Mapping[str, Any]) -> None:
        """Keep the settings until there is something to send."""
        self._config = config

    def open(self) -> None:
        """Find or create the run, and send the settings as its parameters. A parameter cannot
        change: a setting that is different in a later attempt becomes a tag."""
        title = self._config.get("name") or "hpc-amp"
        self._find(
            os.environ.get("MLFLOW_EXPERIMENT_NAME") or title,
            os.environ.get("MLFLOW_RUN_NAME") or f"{title}/{self.run_dir.name}",
        )
        new, tags = [], []
        for name, value in run.flat(self._config).items():
            key, text = self.accepted(name), str(value)[:_LENGTH]
            if key not in self._params:
                new.append(Param(key, text))
            elif self._params[key] != text:
                tags.append(RunTag(f"changed.{key}", text))
        for first in range(0, len(new), _PARAMS):
            self._client.log_batch(self._run_id, params=new[first : first + _PARAMS])
        for first in range(0, len(tags), _PARAMS):
            self._client.log_batch(self._run_id, tags=tags[first : first + _PARAMS])

    def _find(self, experiment: str, name: str) -> None:
        """Find the run, or create it. Sets `sent` to what it has."""
        place = self._experiment(experiment)
        found = self._client.search_runs([place], f"tags.`{_TAG}` = '{self._id}'")
        if not found:
            tags = {_TAG: self._id}
            campaign = run.group(self.run_dir)
            if campaign is not None:
                tags["hpc_amp.campaign"] = campaign
            self._run_id = self._client.create_run(place, run_name=name, tags=tags).info.run_id
            return
        self._run_id = found[0].info.run_id
        self._params = found[0].data.params
        for key in found[0].data.metrics:
            history = self._client.get_metric_history(self._run_id, key)
            self.sent[key] = max(metric.step for metric in history)
        self._client.update_run(self._run_id, status="RUNNING")

    def _experiment(self, name: str) -> str:
        """The id of an experiment, which is created if there is none of this name."""
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException:  # another run has just created it
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def accepted(self, name: str) -> str:
        """The name with `_` for the characters that MLflow refuses."""
        return _NOT_IN_NAMES.sub("_", name)

    def send(self, points: Sequence[Point]) -> None:
        """Send points, as many in a request as MLflow takes."""
        metrics = [
            Metric(name, value, math.floor(point.time * 1000), point.step)
            for point in points
            for name, value in point.values.items()
        ]
        for first in range(0, len(metrics), _METRICS):
            self._client.log_batch(self._run_id, metrics=metrics[first : first + _METRICS])

    def picture(self, step: int, name: str, picture: Tensor) -> None:
        """Store a picture as a file of the run. A later one of the same step replaces it."""
        self.catch_up()
        pixels = picture.mul(255).clamp(0, 255).byte().permute(1, 2, 0).numpy()
        self._client.log_image(self._run_id, pixels, f"{name}/step-{step:08d}.png")

    def end(self, outcome: str) -> None:
        """Set the status of the run."""
        if self._run_id:
            self._client.set_terminated(self._run_id, _STATUS[outcome])
