"""What the tab HPARAMS of TensorBoard shows, by the code of TensorBoard itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams.backend_context import Context
from tensorboard.plugins.hparams.list_session_groups import Handler


def session_groups(folder: Path) -> list[Any]:
    """The entries for the runs below a folder, each with its settings and metrics."""
    runs = EventMultiplexer().AddRunsFromDirectory(str(folder)).Reload()
    provider = MultiplexerDataProvider(runs, str(folder))
    backend = Context(TBContext(logdir=str(folder), multiplexer=runs, data_provider=provider))
    context = RequestContext()
    written = backend.hparams_metadata(context, "")
    experiment = backend.experiment_from_metadata(context, "", True, written, None)
    columns = [{"metric": one.name} for one in experiment.metric_infos]
    columns += [{"hparam": one.name} for one in experiment.hparam_infos]
    statuses = [api_pb2.STATUS_SUCCESS, api_pb2.STATUS_RUNNING, api_pb2.STATUS_UNKNOWN]
    shown = [api_pb2.ColParams(include_in_result=True, **one) for one in columns]
    request = api_pb2.ListSessionGroupsRequest(
        start_index=0, slice_size=100, allowed_statuses=statuses, col_params=shown
    )
    return list(Handler(context, backend, "", request).run().session_groups)
