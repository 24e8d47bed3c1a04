"""`python -m support.exported STORE RUN_DIR...`: export runs twice to an MLflow store, as two calls
of the command would. Prints what the store has then, and whether torch was imported, as JSON."""

from __future__ import annotations

import json
import os
import sys


def main(store: str, *runs: str) -> None:
    os.environ |= {"MLFLOW_TRACKING_URI": store, "MLFLOW_ALLOW_FILE_STORE": "true"}
    os.environ["MLFLOW_EXPERIMENT_NAME"] = "all"
    from hpc_amp.cli.app import app

    for _ in range(2):
        app(["export", *runs, "--mlflow", "--json"], standalone_mode=False)

    from mlflow import MlflowClient

    client = MlflowClient(store)
    (experiment,) = client.search_experiments(filter_string="name = 'all'")
    found = {}
    for run in client.search_runs([experiment.experiment_id]):
        history = client.get_metric_history(run.info.run_id, "train/loss")
        found[run.info.run_name] = {
            "points": [(point.step, point.value) for point in history],
            "curves": sorted(run.data.metrics),
            "params": run.data.params,
            "status": run.info.status,
        }
    print(json.dumps({"runs": found, "torch": "torch" in sys.modules}))


if __name__ == "__main__":
    main(*sys.argv[1:])
