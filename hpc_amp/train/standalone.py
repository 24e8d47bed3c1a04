"""One attempt of a training in a program or a notebook, without a launch script."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch.distributed as dist

from hpc_amp.config.schema import Train, to_plain
from hpc_amp.data.together import from_main
from hpc_amp.distributed import setup
from hpc_amp.distributed.world import World, resolve, standard_variables
from hpc_amp.files import write_json
from hpc_amp.train.engine import Engine
from hpc_amp.train.observer import Observer
from hpc_amp.train.program import job_of_program
from hpc_amp.train.rundir import RunDirectory
from hpc_amp.train.schedule import RateFactor
from hpc_amp.train.sentry import Sentry
from hpc_amp.train.settings import check_settings
from hpc_amp.train.stages import TaskFactory, begin, prepare_device
from hpc_amp.train.stopping import StopWatch, seconds_in


@contextlib.contextmanager
def standalone(
    train: Train,
    out: str | os.PathLike[str],
    task: TaskFactory | None,
    observers: Sequence[Observer],
    rate: RateFactor | None,
    timeout: float,
    attempt: int | None = None,
) -> Iterator[tuple[Engine, RunDirectory, str]]:
    """Prepare an engine on this rank. Yields it, its run directory and its name.

    Signals ask for a stop as long as the block lasts. `attempt`: the number of the attempt; without
    it, the next one of the run. The other arguments and the errors are those of
    `hpc_amp.train.api.fit`.
    """
    world = resolve(os.environ)
    check_settings(train, world)
    os.environ.update(standard_variables(world, os.environ))
    device = prepare_device(train, world)
    joined_before = dist.is_initialized()
    if not joined_before:
        setup.join(world, device, timeout)
    path = Path(out).absolute()
    number = attempt if attempt is not None else from_main(world, lambda: _claim(path, train))
    run = RunDirectory(path, number)
    run.attempt_path.mkdir(parents=True, exist_ok=True)
    watch = _watch(run, world)
    with _listening(watch), _guarded(run, watch, world, timeout) as sentry:
        engine = begin(
            train, world, device, run, watch, sentry,
            timeout=timeout, task=task, observers=observers, rate=rate,
        )  # fmt: skip
        try:
            yield engine, run, os.fspath(out)
        finally:
            engine.precision.close()
            engine.tracker.close()
            # A notebook may train many times, and the garbage collector frees an engine late.
            engine.data.close()
        if not joined_before:
            setup.leave()


def _claim(path: Path, train: Train) -> int:
    """Create the folder of the next attempt. Returns its number."""
    attempts = path / "attempts"
    attempts.mkdir(parents=True, exist_ok=True)
    while True:
        numbers = [int(folder.name) for folder in attempts.iterdir() if folder.name.isdigit()]
        number = max(numbers, default=0) + 1
        try:
            (attempts / str(number)).mkdir()
        except FileExistsError:
            continue  # another process has just created it
        write_json(path / "train.json", to_plain(train))
        return number


def _watch(run: RunDirectory, world: World) -> StopWatch:
    """In a job, the job's time limit and stop file are observed."""
    job = job_of_program()
    return StopWatch(
        stop_at=seconds_in("HPC_AMP_STOP_AT"),
        end_at=seconds_in("HPC_AMP_END_AT"),
        stop_file=(job or run).stop_file if world.is_main else None,
        successor=run.successor if world.is_main and run.attempt else None,
    )


@contextlib.contextmanager
def _listening(watch: StopWatch) -> Iterator[None]:
    """Let signals ask for a stop in this block. Only the main thread can do that in Python."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = watch.install_handlers()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextlib.contextmanager
def _guarded(
    run: RunDirectory, watch: StopWatch, world: World, timeout: float
) -> Iterator[Sentry | None]:
    """A sentry, if there are several ranks. It ends a rank that hangs by force, which a notebook on
    a single process must not suffer."""
    if world.size == 1 or threading.current_thread() is not threading.main_thread():
        yield None
        return
    grace = seconds_in("HPC_AMP_GRACE") or 30.0
    sentry = Sentry(run, watch, rank=world.rank, grace=grace)
    sentry.listen()
    sentry.limit(timeout)
    try:
        yield sentry
    finally:
        sentry.unlimit()
        sentry.close()
        signal.set_wakeup_fd(-1)
