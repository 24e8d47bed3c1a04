"""A point of a scaling curve: the combined measurements of all runs on one number of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median

from hpc_amp.campaigns.spread import quartiles, relative_half_width
from hpc_amp.campaigns.timing import AllReduceTiming, RankTiming
from hpc_amp.study.folder import Kind
from hpc_amp.study.runs import StudyRun


@dataclass(frozen=True, slots=True)
class SlowRank:
    """The slowest rank. `excess` is its additional time relative to the median rank of its run: 0.1
    is 10 % longer."""

    rank: int
    host: str
    repeat: int
    excess: float


@dataclass(frozen=True, slots=True)
class Shares:
    """The parts of the time of all steps. Their sum is 1.

    `communication` is None if it was not measured; `compute` then includes it.
    """

    compute: float
    communication: float | None
    data_wait: float


@dataclass(frozen=True, slots=True)
class AllReduce:
    """An all-reduce of the size of the gradients, alone. `bus_bandwidth` in bytes/s is what each
    of p ranks sends and receives in a ring, bytes * 2 (p - 1) / p divided by the time (NVIDIA
    nccl-tests, doc/PERFORMANCE.md). It is None for one rank."""

    bytes: int
    seconds: float
    spread: tuple[float, float]
    bus_bandwidth: float | None


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """The measurements on one number of nodes.

    `step_seconds` is the median over runs of the median over a run's steps and ranks.
    `step_spread` has the quartiles over all steps, ranks and runs. `half_width` is half the 95 %
    interval of `step_seconds`, relative to it, from the scatter of the runs; None for one run.
    """

    kind: Kind
    nodes: int
    planned: int
    runs: tuple[StudyRun, ...]
    run_seconds: tuple[float, ...]
    step_seconds: float
    step_spread: tuple[float, float]
    mean_seconds: float
    half_width: float | None
    shares: Shares
    slowest: SlowRank | None
    allreduce: AllReduce | None

    @property
    def complete(self) -> bool:
        """Whether all planned runs are measured on all ranks."""
        measured = sum(run.state == "measured" for run in self.runs)
        return measured == self.planned

    @property
    def first(self) -> RankTiming:
        """One of its ranks, for values that should be the same for all ranks and runs."""
        return self.runs[0].ranks[0]

    @property
    def is_reported(self) -> bool:
        """Whether the user's own program reported the times. The parts of a step are not known."""
        return self.first.reported

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.first.world_size

    @property
    def batch_size(self) -> int:
        """The global batch."""
        return self.first.batch_size

    @property
    def samples_per_second(self) -> float:
        """The throughput of all ranks together."""
        return self.batch_size / self.step_seconds

    @property
    def run_throughputs(self) -> list[float]:
        """Samples per second of each run."""
        return [
            run.ranks[0].batch_size / seconds
            for run, seconds in zip(self.runs, self.run_seconds, strict=True)
        ]


def measure_point(runs: Sequence[StudyRun]) -> MeasuredPoint | None:
    """The point of `runs`, which are all repeats on one number of nodes. None if none has
    measurements."""
    measured = tuple(run for run in runs if run.ranks)
    if not measured:
        return None
    steps = [list(chain.from_iterable(rank.steps for rank in run.ranks)) for run in measured]
    run_seconds = tuple(median(values) for values in steps)
    every_step = list(chain.from_iterable(steps))
    return MeasuredPoint(
        kind=measured[0].planned.kind,
        nodes=measured[0].planned.nodes,
        planned=len(runs),
        runs=measured,
        run_seconds=run_seconds,
        step_seconds=median(run_seconds),
        step_spread=quartiles(every_step),
        mean_seconds=sum(every_step) / len(every_step),
        half_width=relative_half_width(run_seconds),
        shares=_shares([rank for run in measured for rank in run.ranks]),
        slowest=_slowest(measured),
        allreduce=_allreduce([run.allreduce for run in measured if run.allreduce]),
    )


def _shares(ranks: Sequence[RankTiming]) -> Shares:
    data_wait = sum(sum(rank.data_wait) for rank in ranks) / sum(sum(r.steps) for r in ranks)
    timed = [pair for rank in ranks for pair in _communication(rank)]
    if not timed:
        return Shares(1 - data_wait, None, data_wait)
    communication = sum(part for _, part in timed) / sum(step for step, _ in timed)
    return Shares(1 - data_wait - communication, communication, data_wait)


def _communication(rank: RankTiming) -> list[tuple[float, float]]:
    """(duration, communication) of each step in which communication was measured."""
    if rank.communication is None:
        return []
    pairs = zip(rank.steps, rank.communication, strict=True)
    return [(step, part) for step, part in pairs if part is not None]


def _slowest(runs: Sequence[StudyRun]) -> SlowRank | None:
    """The slowest rank of all runs, by the time outside of communication. The time of whole steps
    is no measure, because ranks wait for each other in the communication. None for one rank, for
    equal ranks, and if communication was not measured on every rank."""
    found = []
    for run in runs:
        pairs = [_communication(rank) for rank in run.ranks]
        if len(run.ranks) < 2 or not all(pairs):
            continue
        own = [median(step - part for step, part in steps) for steps in pairs]
        usual = median(own)
        if usual <= 0:
            continue
        worst = max(range(len(own)), key=own.__getitem__)
        rank = run.ranks[worst]
        excess = own[worst] / usual - 1
        if excess > 0:
            found.append(SlowRank(rank.rank, rank.host, run.planned.repeat, excess))
    return max(found, key=lambda slow: slow.excess, default=None)


def _allreduce(measured: Sequence[AllReduceTiming]) -> AllReduce | None:
    """The all-reduce of the runs with the same size as in the first run."""
    if not measured:
        return None
    first = measured[0]
    alike = [m for m in measured if (m.bytes, m.world_size) == (first.bytes, first.world_size)]
    seconds = median(median(one.seconds) for one in alike)
    ranks = first.world_size
    return AllReduce(
        bytes=first.bytes,
        seconds=seconds,
        spread=quartiles(list(chain.from_iterable(one.seconds for one in alike))),
        bus_bandwidth=first.bytes * 2 * (ranks - 1) / ranks / seconds if ranks > 1 else None,
    )
