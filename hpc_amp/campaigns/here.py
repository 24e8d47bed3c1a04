"""A campaign on this machine: its points run here, so many at a time, until they have all ended."""

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
    read_submitted,
    record_cancelled,
    record_queued,
    record_submitted,
)
from hpc_amp.campaigns.submit import write_script
from hpc_amp.errors import UsageError
from hpc_amp.jobs import rundir
from hpc_amp.jobs.events import record_event
from hpc_amp.schedulers import get_scheduler
from hpc_amp.signals import INTERRUPTING, Handler, handling, interrupt

_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Slot:
    """A part of this machine for one point at a time. `gpus` is None where they are not divided."""

    gpus: tuple[str, ...] | None = None


def slots_here(campaign: Campaign, devices: Sequence[str], cores: int) -> list[Slot]:
    """As many slots as the campaign says, or as the GPUs of this machine allow, or, without GPUs,
    its cores. GPUs are divided among them."""
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
    """The campaign was stopped by Ctrl-C or a signal. The points that ran have saved and stopped,
    as far as they can."""


def run_here(
    campaign: Campaign,
    parts: Sequence[Part],
    slots: Sequence[Slot],
    on_record: Callable[[], object],
    on_end: Callable[[int], object],
) -> None:
    """Run the parts' points in the slots; `on_record` is called when other commands can see that
    this one has them, and `on_end` is told the number of each that has ended. Raises
    CampaignInterrupted.
    """
    pool = _Pool(campaign, slots, on_end)
    own_id = arrays_of(campaign).id_of_process(os.getpid())
    waiting: list[tuple[int, Path, int]] = []
    is_new = not read_submitted(campaign)  # an older one that goes on does not get its name back
    for part in parts:
        script = write_script(campaign, part)
        record_submitted(campaign, part)
        record_queued(campaign, part, [own_id])
        waiting += [(point, script, task) for task, point in enumerate(part.points)]
    if is_new:
        rundir.point_latest(campaign.folder)
    on_record()
    interrupted = threading.Event()
    # A note, and no exception: what is just being started must not be missed.
    try:
        with _signals(lambda number, frame: interrupted.set()):
            pool.work_off(waiting, interrupted)
    except BaseException:
        # A full disk, or nobody who reads what we say: nothing may run on without its slot.
        pool.stop_reporting()
        with _signals(interrupt):
            pool.stop()
        raise
    if interrupted.is_set():
        with _signals(interrupt):
            pool.stop()
        raise CampaignInterrupted


class _Pool:
    """The points that run now, each in its slot."""

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
        """Run all of (point, script, task), or return when that is interrupted."""
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
                start_new_session=True,  # Ctrl-C is for this process, which asks them to save
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
        """Let the points that run save and stop, all at once. Who interrupts this leaves them
        alone with it."""
        with suppress(UsageError):  # a disk that is full must not keep them running
            record_cancelled(self._campaign, self._reason)
        for point, (process, _) in self._running.items():
            run_dir = self._campaign.point_dir(point)
            with suppress(UsageError):
                if (run_dir / "state.jsonl").exists():  # it has begun
                    record_event(run_dir, "cancelled", reason=self._reason)
            job_id = self._arrays.id_of_process(process.pid)
            ending = threading.Thread(target=self._scheduler.cancel, args=[job_id], daemon=True)
            ending.start()
        while self._running:
            time.sleep(_POLL_SECONDS)
            self._collect()


def _signals(handler: Handler) -> AbstractContextManager[None]:
    """SIGTERM and SIGHUP as Ctrl-C: what runs shall save in any case. A closed pipe is an error,
    not the end of the process."""
    return handling({**dict.fromkeys(INTERRUPTING, handler), signal.SIGPIPE: signal.SIG_IGN})
