"""A campaign on this machine: the command runs its points, several at a time, until all have
ended."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

from hpc_amp.campaigns.folder import Campaign
from hpc_amp.campaigns.parts import Part, arrays_of
from hpc_amp.campaigns.record import (
    record_cancelled,
    record_queued,
    record_submitted,
)
from hpc_amp.campaigns.submit import write_script
from hpc_amp.errors import UsageError
from hpc_amp.jobs import rundir
from hpc_amp.jobs.events import record_event
from hpc_amp.schedulers import get_scheduler
from hpc_amp.signals import INTERRUPTING, Handler, handling, interrupt, not_ignored

_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Slot:
    """A part of this machine, for one point at a time. `gpus` is None if points share the GPUs."""

    gpus: tuple[str, ...] | None = None


def slots_here(campaign: Campaign, devices: Sequence[str], cores: int) -> list[Slot]:
    """The slots of this machine: `campaign.at_once`, or as many as its GPUs or cores allow. If the
    points use GPUs, each slot has the GPUs of one point, so the GPUs limit the number of slots."""
    gpus = max(group.gpus for group in campaign.groups)
    if gpus and devices:
        most = max(1, len(devices) // gpus)
        count = min(campaign.at_once or most, most)
        return [Slot(tuple(devices[gpus * i : gpus * (i + 1)])) for i in range(count)]
    most = max(1, cores // max(group.cores for group in campaign.groups))
    return [Slot()] * (campaign.at_once or most)


def gpus_here() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [device.strip() for device in visible.split(",") if device.strip()]
    folder = Path("/proc/driver/nvidia/gpus")
    return [str(index) for index in range(len(list(folder.iterdir())))] if folder.is_dir() else []


class CampaignInterrupted(Exception):
    """The campaign was stopped by Ctrl-C or a signal. Running points were asked to save, and have
    ended."""


def run_here(
    campaign: Campaign,
    parts: Sequence[Part],
    slots: Sequence[Slot],
    on_record: Callable[[], object],
    on_end: Callable[[int], object],
) -> None:
    """Run the points of the parts in the slots. `on_record` is called when the points are on
    record, so that other commands do not submit them too. `on_end` is called with the number of
    each point that has ended. Raises CampaignInterrupted after Ctrl-C or a signal.
    """
    pool = _Pool(campaign, slots, on_end)
    own_id = arrays_of(campaign).id_of_process(os.getpid())
    waiting: list[tuple[int, Path, int]] = []
    for part in parts:
        script = write_script(campaign, part)
        record_submitted(campaign, part)
        record_queued(campaign, part, [own_id])
        waiting += [(point, script, task) for task, point in enumerate(part.points)]
    rundir.write_latest(campaign.folder.parent)
    on_record()
    interrupted = threading.Event()
    # The handler sets a flag instead of raising: a process that is being started must be noted.
    try:
        with _signals(lambda number, frame: interrupted.set()):
            pool.work_off(waiting, interrupted)
    except BaseException:
        # The disk is full, or our output is not read any more: end all points before this command.
        pool.stop_reporting()
        with _signals(interrupt):
            pool.stop()
        raise
    if interrupted.is_set():
        with _signals(interrupt):
            pool.stop()
        raise CampaignInterrupted


class _Pool:
    """The running points, each in its slot."""

    def __init__(
        self, campaign: Campaign, slots: Sequence[Slot], on_end: Callable[[int], object]
    ) -> None:
        self._campaign = campaign
        self._reason = f"hpc-amp {campaign.view} was interrupted"
        self._free = list(reversed(slots))
        self._on_end = on_end
        self._scheduler = get_scheduler(campaign.scheduler)
        self._arrays = arrays_of(campaign)
        self._running: dict[int, tuple[subprocess.Popen[bytes], Slot]] = {}

    def work_off(
        self, waiting: Sequence[tuple[int, Path, int]], interrupted: threading.Event
    ) -> None:
        """Run all of `waiting`, which are (point, script, task), until `interrupted` is set."""
        queue = iter(waiting)
        upcoming = next(queue, None)
        while (upcoming is not None or self._running) and not interrupted.is_set():
            while upcoming is not None and self._free and not interrupted.is_set():
                self._start(*upcoming)
                upcoming = next(queue, None)
            time.sleep(_POLL_SECONDS)
            self._collect()

    def _start(self, point: int, script: Path, task: int) -> None:
        slot = self._free.pop()
        environ = {**os.environ, "HPC_AMP_TASK": str(task)}
        if slot.gpus is not None:
            environ["CUDA_VISIBLE_DEVICES"] = ",".join(slot.gpus)
        with (self._campaign.folder / "logs" / "job.log").open("ab") as log:
            process = subprocess.Popen(
                ["bash", str(script)],
                env=environ,
                cwd=self._campaign.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C only reaches this process, which asks the points to save
                start_new_session=True,
            )
        self._running[point] = (process, slot)

    def _collect(self) -> None:
        for point, (process, slot) in list(self._running.items()):
            if process.poll() is not None:
                del self._running[point]
                self._free.append(slot)
                self._on_end(point)

    def stop_reporting(self) -> None:
        """Do not call `on_end` any more."""
        self._on_end = lambda point: None

    def stop(self) -> None:
        """Let all running points save and stop, at the same time, and wait for their end. If this
        is interrupted, they continue without being watched."""
        with suppress(UsageError):  # the points must end even if the disk is full
            record_cancelled(self._campaign, self._reason)
        for point, (process, _) in self._running.items():
            run_dir = self._campaign.point_dir(point)
            with suppress(UsageError):
                if (run_dir / "state.jsonl").exists():  # it has started
                    record_event(run_dir, "cancelled", reason=self._reason)
            job_id = self._arrays.id_of_process(process.pid)
            ending = threading.Thread(target=self._scheduler.cancel, args=[job_id], daemon=True)
            ending.start()
        while self._running:
            time.sleep(_POLL_SECONDS)
            self._collect()


def _signals(handler: Handler) -> AbstractContextManager[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C, so that running points save. What this process was
    started to ignore, such as SIGHUP by `nohup`, stays ignored. Ignore SIGPIPE: a closed pipe is
    then an error instead of the end of this process."""
    heeded = dict.fromkeys(not_ignored(INTERRUPTING), handler)
    return handling({**heeded, signal.SIGPIPE: signal.SIG_IGN})
