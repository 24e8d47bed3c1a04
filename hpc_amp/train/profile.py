"""A profile of some steps (`train.profile`): a trace of each chosen rank, and where the time goes.

attempts/N/profile/rank-00000.json.gz   trace of torch's profiler, for ui.perfetto.dev
attempts/N/profile/summary.txt          the parts of a step, as in the log
attempts/N/profile/summary.json         the same for programs, in seconds
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from hpc_amp.config.schema import Profile, Train
from hpc_amp.distributed.collect import gather_on_main
from hpc_amp.distributed.world import World
from hpc_amp.files import replacing, write_atomically, write_json
from hpc_amp.train.errors import SettingError
from hpc_amp.train.marks import Marks
from hpc_amp.train.observer import Observer, Training
from hpc_amp.train.rundir import RunDirectory
from hpc_amp.train.trace import PARTS, NoSteps, break_down


def profilers(train: Train, world: World, run: RunDirectory) -> tuple[Observer, ...]:
    """The observer for `train.profile`; empty if the job has no profile. Raises SettingError if it
    names a rank that does not exist."""
    return () if train.profile is None else (Profiler(train.profile, world, run),)


class Profiler(Observer):
    """Profiles the steps that `config` names. Every rank needs one, because all ranks send their
    summaries to rank 0. Before and after these steps, it costs nothing."""

    def __init__(self, config: Profile, world: World, run: RunDirectory) -> None:
        missing = [rank for rank in config.ranks if rank >= world.size]
        if missing:
            raise SettingError(
                f"train.profile.ranks: there is no rank {missing[0]}; the job has {world.size}"
            )
        self._first, self._last = config.steps
        self._ranks = config.ranks
        self._world = world
        self._folder = run.attempt_path / "profile"
        self._marks: Marks | None = None
        self._profile: profile | None = None

    def begin(self, engine: Training) -> None:
        """Wait for the first step to profile, unless a resume begins after it."""
        if engine.step >= self._first:
            engine.tracker.say(f"no profile: step {self._first} was done before this attempt")
            return
        self._marks = Marks(engine, lambda: self._between_steps(engine))
        self._between_steps(engine)

    def evaluated(self, engine: Training) -> None:
        """Begin a new step: an evaluation belongs to no step."""
        if self._marks is not None:
            self._marks.begin_step()

    def end(self, engine: Training) -> None:
        """Say so if training ended before the last step to profile."""
        if self._marks is not None and engine.step < self._last:
            engine.tracker.say(f"profile: the training ended before step {self._last}")
            self._marks.remove()
            if self._profile is not None:
                self._profile.stop()

    def _between_steps(self, engine: Training) -> None:
        assert self._marks is not None
        if engine.step == self._first - 1 and self._world.rank in self._ranks:
            self._start(engine, self._marks)
        if engine.step == self._last:
            self._marks.remove()
            engine.pace.pause()
            self._finish(engine)
            engine.resume_clocks()
        else:
            self._marks.begin_step()

    def _start(self, engine: Training, marks: Marks) -> None:
        activities = [ProfilerActivity.CPU]
        if engine.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
            torch.cuda.synchronize(engine.device)
        else:
            # torch's profiler would warn that there is no GPU.
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        self._profile = profile(activities=activities)
        self._profile.start()
        marks.are_on = True

    def _finish(self, engine: Training) -> None:
        """Write the trace of this rank, and on rank 0 the summary of all ranks."""
        own = None
        if self._profile is not None:
            if engine.device.type == "cuda":
                torch.cuda.synchronize(engine.device)
            self._profile.stop()
            try:
                own = self._write_trace(self._profile)
            except (OSError, ValueError, NoSteps) as error:
                print(f"WARNING: profile of rank {self._world.rank}: {error}", flush=True)
        summaries = gather_on_main(self._world, own)
        if summaries is None:
            return
        found = [summary for summary in summaries if summary is not None]
        lines = _table((self._first, self._last), found)
        for line in (*lines, f"traces: {self._folder}, for ui.perfetto.dev"):
            engine.tracker.say(line)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._folder / "summary.txt", "".join(f"{line}\n" for line in lines))
            write_json(
                self._folder / "summary.json",
                {"first_step": self._first, "last_step": self._last, "ranks": found},
            )
        except OSError as error:
            print(f"WARNING: the profile's summary cannot be written: {error}", flush=True)

    def _write_trace(self, stopped: profile) -> dict[str, Any]:
        """Write the trace of this rank. Returns its part of the summary."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"rank-{self._world.rank:05d}.json.gz"
        with replacing(path) as new:
            stopped.export_chrome_trace(str(new))
            content = new.read_bytes()
            with gzip.open(new, "wb", compresslevel=3) as out:
                out.write(content)
        summary = asdict(break_down(json.loads(content)))
        return {"rank": self._world.rank, "host": os.uname().nodename, **summary}


def _table(steps: Sequence[int], summaries: Sequence[dict[str, Any]]) -> list[str]:
    """The parts of a step on each rank, as a table for people."""
    heads = [f"rank {summary['rank']} on {summary['host']}" for summary in summaries]
    widths = [max(len(head), 16) for head in heads]
    lines = [
        f"profile of steps {steps[0]} to {steps[1]}: ms of a step, which the profiler itself slows",
        _row("", heads, widths),
    ]
    for part in PARTS:
        cells = [
            f"{1000 * s['parts'][part]:.2f} {100 * s['parts'][part] / s['step']:5.0f} %"
            for s in summaries
        ]
        lines.append(_row(part, cells, widths))
    whole = [f"{1000 * summary['step']:.2f}   100 %" for summary in summaries]
    exchange = [f"{1000 * summary['exchange']:.2f}        " for summary in summaries]
    return [
        *lines,
        _row("step", whole, widths),
        _row("all exchange", exchange, widths),
        "communication is the part of all exchange that compute does not hide",
    ]


def _row(name: str, cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    return f"  {name:<13}  {'  '.join(padded)}".rstrip()
