"""Computes where the time of a step goes, from a trace of torch's profiler (Chrome's trace format).

The host's timeline has marks (`hpc_amp.train.marks`): a whole step; in it, the wait for the batch
(data) and the work of the engine (update); in the update, forward. The rest of an update is
backward, up to the last gradient, which autograd marks itself, and then optimizer: unscaling,
clipping, the step, averages.

Each moment of a step belongs to a part, by what the device does:

    forward, backward, optimizer, data   it computes or copies. The part is the one in which the
                                         host launched that work
    communication                        it only communicates: computation does not hide this
    data                                 it does nothing, and the host waits for a batch
    idle                                 it does nothing, and the host does something else: it
                                         launches work too slowly, or is between two steps

The work of a GPU consists of its kernels and copies; NCCL's kernels are communication. The work of
a CPU consists of torch's operators; gloo's exchanges, in threads of their own, are communication.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from hpc_amp.train.marks import DATA, FORWARD, STEP, UPDATE

PARTS = ("data", "forward", "backward", "communication", "optimizer", "idle")

_GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_GRADIENT = "autograd::engine::evaluate_function"
_MICROSECONDS = 1e-6

Span = tuple[float, float]
"""Begin and end, in the trace's microseconds."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Seconds of one step, averaged over the profiled steps. `parts` has the time of each of PARTS,
    which add up to `step`. `exchange` is all communication, hidden or not."""

    steps: int
    step: float
    parts: dict[str, float]
    exchange: float


class NoSteps(Exception):
    """The trace has no complete step."""


def break_down(trace: dict[str, Any]) -> Breakdown:
    """Break the profiled steps down into parts. `trace` is the content of a trace file. Raises
    NoSteps."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    updates = _marked(events, UPDATE)
    # A step without an update was interrupted by an evaluation.
    steps = [span for span in _marked(events, STEP) if any(_clip(updates, *span))]
    if not steps:
        raise NoSteps
    host = _host_timeline(events)
    launches = {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event["args"]
    }
    on_gpu = any(event.get("cat") in _GPU_WORK for event in events)
    work: list[tuple[Span, str]] = []
    exchange: list[Span] = []
    for event in events:
        span = _span(event)
        if _communicates(event):
            exchange.append(span)
        elif event.get("cat") in (_GPU_WORK if on_gpu else ("cpu_op",)):
            launched = launches.get(event.get("args", {}).get("correlation"), span[0])
            part = host.part(launched)
            if part is not None:
                work.append((span, part))
    if on_gpu:
        # The device may still work on the last step when the host has finished it.
        done = max([steps[-1][1], *(last for (_, last), _ in work)])
        steps[-1] = (steps[-1][0], done)
    work.sort()
    # A trace may have a million events, so each step only looks at its own.
    ends = list(accumulate((last for (_, last), _ in work), max))
    exchange = _union(exchange)
    seconds = dict.fromkeys(PARTS, 0.0)
    for step in steps:
        own = work[bisect_right(ends, step[0]) : bisect_left(work, ((step[1],),))]
        _divide(step, own, exchange, host, seconds)
    scale = _MICROSECONDS / len(steps)
    return Breakdown(
        steps=len(steps),
        step=_length(steps) * scale,
        parts={part: seconds[part] * scale for part in PARTS},
        exchange=sum(_length(_clip_sorted(exchange, *step)) for step in steps) * scale,
    )


def _divide(
    step: Span,
    work: Sequence[tuple[Span, str]],
    exchange: Sequence[Span],
    host: _Timeline,
    seconds: dict[str, float],
) -> None:
    """Add the time of each part of one step to `seconds`. If two kernels overlap, the time belongs
    to the earlier one."""
    at = step[0]
    covered = []
    for span, part in work:
        for first, last in _clip([span], at, step[1]):
            seconds[part] += last - first
            covered.append((first, last))
            at = last
    for gap in _rest(step, covered):
        communication = _clip_sorted(exchange, *gap)
        seconds["communication"] += _length(communication)
        for first, last in _rest(gap, communication):
            waiting = host.overlap(first, last, "data")
            seconds["data"] += waiting
            seconds["idle"] += last - first - waiting


class _Timeline:
    """What the host does at which time: sorted spans that do not overlap, each with its part."""

    def __init__(self, spans: Iterable[tuple[float, float, str]]) -> None:
        self._spans = sorted(spans)
        self._begins = [begin for begin, _, _ in self._spans]
        self._ends = [end for _, end, _ in self._spans]

    def part(self, moment: float) -> str | None:
        """The part that a moment belongs to, or None."""
        index = bisect_right(self._begins, moment) - 1
        if index < 0 or moment > self._spans[index][1]:
            return None
        return self._spans[index][2]

    def overlap(self, first: float, last: float, part: str) -> float:
        """How much of the span from `first` to `last` belongs to `part`, in microseconds."""
        begin_index = bisect_right(self._ends, first)
        end_index = bisect_left(self._begins, last)
        total = 0.0
        for begin, end, name in self._spans[begin_index:end_index]:
            if name == part:
                total += max(0.0, min(last, end) - max(first, begin))
        return total


def _host_timeline(events: Sequence[dict[str, Any]]) -> _Timeline:
    """What the host does when, from the marks of a trace and autograd's own events."""
    spans = [(*span, "data") for span in _marked(events, DATA)]
    forwards = _marked(events, FORWARD)
    gradients = sorted(_span(event) for event in events if event["name"].startswith(_GRADIENT))
    for begin, end in _marked(events, UPDATE):
        inside = _clip(forwards, begin, end)
        spans += [(*span, "forward") for span in inside]
        for gap in _rest((begin, end), inside):
            own = gradients[bisect_left(gradients, gap[:1]) : bisect_left(gradients, gap[1:])]
            found = [last for _, last in own]
            turn = min(max(found), gap[1]) if found else gap[0]
            spans += [(gap[0], turn, "backward"), (turn, gap[1], "optimizer")]
    return _Timeline(span for span in spans if span[1] > span[0])


def _communicates(event: dict[str, Any]) -> bool:
    """Whether an event is an exchange of gloo or a kernel of NCCL."""
    name = event["name"].lower()
    return name.startswith("gloo:") or (event.get("cat") == "kernel" and "nccl" in name)


def _span(event: dict[str, Any]) -> Span:
    return float(event["ts"]), float(event["ts"]) + float(event["dur"])


def _marked(events: Iterable[dict[str, Any]], name: str) -> list[Span]:
    """The spans of a mark on the host, sorted. A GPU's timeline repeats the mark."""
    return sorted(
        _span(event)
        for event in events
        if event["name"] == name and event.get("cat") == "user_annotation"
    )


def _length(spans: Iterable[Span]) -> float:
    return sum(last - first for first, last in spans)


def _union(spans: Iterable[Span]) -> list[Span]:
    """The same moments as sorted spans that do not overlap."""
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def _clip(spans: Iterable[Span], begin: float, end: float) -> list[Span]:
    """The parts of `spans` between two moments."""
    clipped = ((max(first, begin), min(last, end)) for first, last in spans)
    return [(first, last) for first, last in clipped if last > first]


def _clip_sorted(spans: Sequence[Span], begin: float, end: float) -> list[Span]:
    """`_clip` for sorted spans that do not overlap."""
    first = bisect_right(spans, begin, key=lambda span: span[1])
    return _clip(spans[first : bisect_left(spans, (end,))], begin, end)


def _rest(whole: Span, covered: Sequence[Span]) -> list[Span]:
    """What is left of a span without the spans in `covered`, which are sorted."""
    left = []
    at = whole[0]
    for first, last in covered:
        if first > at:
            left.append((at, first))
        at = max(at, last)
    if at < whole[1]:
        left.append((at, whole[1]))
    return left
