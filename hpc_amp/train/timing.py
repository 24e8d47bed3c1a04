"""Measures single steps, for `hpc-amp bench` and `hpc-amp scale`.

Each rank writes `attempts/N/timing/rank-00000.json` in the form that `hpc_amp.study.timing`
describes, and rank 0 writes `allreduce.json` beside it. The file of a rank also holds

    device_type         text: cuda or cpu
    peak_memory_bytes   int: on a GPU, the most that torch had allocated in the measured steps; on a
                        CPU, the largest resident size of the process up to their end
    tf32                null on CPUs; else {"matmul": bool, "convolution": bool}
    channels_last       bool
    task                text: the name of the task
    model               text: the name of the network, or of the task if it has no choice of one
    environment         versions and hardware
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hpc_amp.config.schema import Timing
from hpc_amp.distributed.world import World
from hpc_amp.files import write_json
from hpc_amp.train import machine
from hpc_amp.train.clock import Mark, clock_of
from hpc_amp.train.exchange import ExchangeTimer, time_alone
from hpc_amp.train.observer import Training

# If `train.timing.seconds` is given, their number of steps follows from the first so many.
_PACE_STEPS = 10


@dataclass(frozen=True, slots=True)
class _Step:
    """The marks of one step: the end of the previous step, the request for the batch, its arrival,
    the end of this step; and those of the exchanges of gradients in between."""

    begin: Mark
    asked: Mark
    ready: Mark
    end: Mark
    exchanges: list[tuple[Mark, Mark]]


class StepTimer:
    """Measures the steps of one rank, as `config` (`train.timing`) asks for.

    The time between two steps belongs to the second one, except for evaluations and checkpoints
    (see `restart`). Nothing waits for the device.
    """

    def __init__(self, config: Timing, world: World, device: torch.device) -> None:
        self._config = config
        self._world = world
        self._device = device
        self._clock = clock_of(device)
        self.exchanges = ExchangeTimer(self._clock, world)
        self._steps: list[_Step] = []
        self._wanted = config.steps if config.seconds is None else None
        self._passed = 0
        self._peak_memory: int | None = None
        self._asked: Mark = None
        self._ready: Mark = None
        self._end: Mark = None

    @property
    def is_done(self) -> bool:
        """Whether all requested steps have been measured."""
        return len(self._steps) == self._wanted

    @property
    def ends_training(self) -> bool:
        """Whether training was to last only as long as the measurement, which is over."""
        return self._config.seconds is not None and self.is_done

    def watch(self, batches: Iterator[list[Any]]) -> Iterator[list[Any]]:
        """Yield the same batches, and measure how long the engine waits for each one."""
        while not self.is_done:
            self._asked = self._clock.mark()
            batch = next(batches, None)
            if batch is None:
                return
            self._ready = self._clock.mark()
            yield batch
        yield from batches

    def step_done(self) -> None:
        """Called when the step of the last batch is over; on a GPU, when it is queued."""
        exchanges = self.exchanges.take()
        if self.is_done:
            return
        end = self._clock.mark()
        self._passed += 1
        if self._passed > self._config.warmup:
            begin = self._asked if self._end is None else self._end
            self._steps.append(_Step(begin, self._asked, self._ready, end, exchanges))
        elif self._passed == self._config.warmup and self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        self._end = end
        seconds = self._config.seconds
        if self._wanted is None and seconds is not None and len(self._steps) == _PACE_STEPS:
            self._wanted = self._steps_in_time(seconds)
            self.restart()
        if self.is_done:
            # Read now, because an evaluation needs memory as well.
            self._peak_memory = machine.peak_memory(self._device)

    def _steps_in_time(self, seconds: float) -> int:
        """How many steps take `seconds`, by the steps so far and the clock of rank 0. A collective
        call."""
        pace = sum(self._clock.seconds(step.begin, step.end) for step in self._steps)
        number = round(seconds / pace * len(self._steps))
        agreed = torch.tensor([max(number, len(self._steps))], device=self._device)
        if self._world.size > 1:
            dist.broadcast(agreed, src=0)
        return int(agreed)

    def restart(self) -> None:
        """What happened since the last step belongs to no step."""
        self._end = None

    def write(self, engine: Training, folder: Path, *, hurry: bool) -> None:
        """Write the measurements to `folder`, if there are any. A collective call.

        If all steps are measured, also measure all-reduces alone, unless there is a `hurry`. If the
        disk refuses a file, only that file is missing.
        """
        if not self._steps:
            return
        facts = self._facts(engine)
        _write(folder / f"rank-{self._world.rank:05d}.json", facts)
        if hurry or self._world.size == 1 or not self.is_done:
            return
        size = facts["gradient_bytes"]
        alone = {
            "bytes": size,
            "seconds": time_alone(size, self._clock, self._device),
            "world_size": self._world.size,
            "nodes": self._world.nodes,
        }
        if self._world.is_main:
            _write(folder / "allreduce.json", alone)

    def _facts(self, engine: Training) -> dict[str, Any]:
        """The content of this rank's file. Waits for the device."""
        train, world, device = engine.train, self._world, self._device
        learning = [p for n in engine.networks.values() for p in n.parameters() if p.requires_grad]
        seconds = self._clock.seconds
        return {
            "rank": world.rank,
            "world_size": world.size,
            "nodes": world.nodes,
            "gpus_per_node": world.local_size if device.type == "cuda" else 0,
            "host": os.uname().nodename,
            "device": machine.device_name(device),
            "device_type": device.type,
            "torch": torch.__version__,
            "precision": engine.policy.mode,
            "data": engine.task.data_name,
            "batch_size": train.batch_size,
            "parameters": sum(p.numel() for n in engine.networks.values() for p in n.parameters()),
            "gradient_bytes": sum(p.numel() * p.element_size() for p in learning),
            "warmup_steps": self._config.warmup,
            "steps": [seconds(step.begin, step.end) for step in self._steps],
            "data_wait": [seconds(step.asked, step.ready) for step in self._steps],
            "communication": [sum(seconds(*p) for p in step.exchanges) for step in self._steps],
            "peak_memory_bytes": self._peak_memory or machine.peak_memory(device),
            "tf32": machine.tf32(device),
            "channels_last": train.channels_last,
            "task": train.task,
            "model": engine.task.title,
            "environment": machine.versions(device),
        }


def _write(path: Path, content: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, content)
    except OSError as error:
        print(f"WARNING: {path} cannot be written: {error}", flush=True)
