"""Compiled networks (`train.compile`): torch.compile with inductor, each network by itself.

A network is compiled for training only, where batches have one size. Evaluations, pictures and
checkpoints use the network itself, so weights keep their names.

Every shape is compiled by itself (`dynamic=False`). If torch made one program for several shapes,
the rounding of a step would depend on the steps before it, and a resume would not be exact.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hpc_amp.train.errors import TrainingError
from hpc_amp.train.machine import device_name, processor
from hpc_amp.train.observer import Observer, Training
from hpc_amp.train.rundir import RunDirectory

BACKEND = "inductor"
_FOLDER = "TORCHINDUCTOR_CACHE_DIR"
_MOST = 256
"""The number of shapes for which networks are compiled."""


class Compiler(Observer):
    """Compiles networks, and logs once what became of it: after the first report of an attempt, and
    again at its end if more was compiled later.

    The programs are kept in `.compiled` beside the run directory, for all ranks and attempts and
    for other runs of the same torch on the same processors, unless TORCHINDUCTOR_CACHE_DIR names
    another folder.

    Raises TrainingError if nothing can be compiled here: there is no C++ compiler, for instance.
    """

    def __init__(self, run: RunDirectory, device: torch.device) -> None:
        import torch._dynamo.config as dynamo
        import torch._inductor.config as inductor

        # torch sets its default, /tmp/torchinductor_USER, when it is imported.
        given = Path(os.environ.get(_FOLDER, "")).name
        if not given or given.startswith("torchinductor_"):
            os.environ[_FOLDER] = str(run.path.parent / ".compiled" / _platform(device))
        _set(inductor, "fx_graph_cache", True)
        if device.type == "cpu":
            # Convolutions keep the memory order of the job and of `to_channels_last`. Otherwise,
            # all would get channels-last order, which corrupts the memory for some of them.
            _set(inductor, "layout_optimization", False)
        # Otherwise each rank starts a process for each core of the node.
        _set(inductor, "compile_threads", torch.get_num_threads())
        # After 8 shapes, of all networks together, torch would run them as they are. A resume
        # counts from 0 again, and would not be exact.
        _set(dynamo, "cache_size_limit", _MOST)
        _set(dynamo, "accumulated_cache_size_limit", _MOST)
        _set(dynamo, "fail_on_cache_limit_hit", True)  # older versions only warn
        self._said = ""
        probe = torch.ones(8, device=device)
        try:
            torch.compile(torch.exp, backend=BACKEND, dynamic=False)(probe)
        except Exception as error:  # of torch, Triton, or a compiler that is missing
            raise TrainingError(
                f"train.compile: torch cannot compile here: {_last_line(error)}. The image needs a "
                "C++ compiler and Python's headers; or set train.compile to false"
            ) from error

    def compiled(self, networks: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
        """The same networks, by name, with the same weights. Each is compiled when it is first
        called, and again for each new shape of its inputs."""
        made: dict[str, nn.Module] = {}
        for name, network in networks.items():
            compiled: Any = torch.compile(network, backend=BACKEND, dynamic=False)
            made[name] = compiled
        return made

    def explained(self, error: Exception) -> TrainingError | None:
        """An error of a step in one line, if the compiler raised it."""
        from torch._dynamo.exc import TorchDynamoException

        if type(error).__name__ in ("FailOnRecompileLimitHit", "FailOnCacheLimitHit"):
            return TrainingError(
                f"train.compile: the networks have seen more than {_MOST} shapes of inputs, and "
                "are compiled for each. Set train.compile to false"
            )
        if not isinstance(error, TorchDynamoException):
            return None
        return TrainingError(
            f"train.compile: a network cannot be compiled: {_last_line(error)}. Set train.compile "
            "to false"
        )

    def reported(self, engine: Training, values: Mapping[str, float]) -> None:
        """Log what was compiled, once."""
        if not self._said:
            self._say(engine)

    def end(self, engine: Training) -> None:
        """Log what was compiled since."""
        self._say(engine)

    def _say(self, engine: Training) -> None:
        text = summary()
        if text != self._said:
            engine.tracker.say(f"train.compile: {text}")
        self._said = text


def _set(config: Any, name: str, value: object) -> None:
    """Set an option of torch, if this version has it. torch 2.1 lacks some."""
    if hasattr(config, name):
        setattr(config, name, value)


def summary() -> str:
    """What this process has compiled so far: the number of graphs, whether an earlier process had
    compiled some of them, and the places where torch left a graph, with reasons."""
    from torch._dynamo.utils import counters

    graphs = counters["stats"]["unique_graphs"] - 1  # without that of `Compiler`
    breaks = counters["graph_break"]
    found = (
        counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
    )
    text = f"{graphs} graph{'s' * (graphs != 1)} compiled"
    if found:
        text += ", some from the cache of earlier ones"
    if not breaks:
        return f"{text}, no graph breaks"
    reasons = "; ".join(sorted({_first_line(reason) for reason in breaks}))
    count = sum(breaks.values())
    return f"{text}, {count} graph break{'s' * (count != 1)}: {reasons}"


def _platform(device: torch.device) -> str:
    """The name of a folder for programs of this torch on these processors. Programs for another CPU
    may have instructions that this one lacks."""
    parts = [f"torch-{torch.__version__}", processor()]
    if device.type == "cuda":
        parts.append(device_name(device))
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", "-".join(parts))


def _first_line(text: object) -> str:
    lines = str(text).strip().splitlines() or [type(text).__name__]
    return lines[0].strip()


def _last_line(error: Exception) -> str:
    """The first line of the error that caused `error`."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return _first_line(cause)
