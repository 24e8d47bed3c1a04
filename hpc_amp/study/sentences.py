"""The sentences of a report."""

from __future__ import annotations

from hpc_amp.campaigns.reported import NOT_REPORTED
from hpc_amp.campaigns.words import count, joined, on_nodes, one_line, percent, percent_between
from hpc_amp.study.analysis import Analysis
from hpc_amp.study.curve import EFFICIENCY_FLOOR, Curve
from hpc_amp.study.fit import Fit

_CONDITIONS = ("device", "torch", "precision", "data")


def plan(analysis: Analysis) -> str:
    """The plan of the study, and how many of its runs are measured."""
    study = analysis.study
    made = {study.point(run.planned) for run in analysis.runs}
    measured = {study.point(run.planned) for run in analysis.runs if run.state == "measured"}
    return (
        f"{joined(list(study.kinds))} scaling {on_nodes(study.nodes)}, "
        f"{count(study.repeats, 'run')} each; {len(measured)} of {count(len(made), 'run')} measured"
    )


def conditions(analysis: Analysis) -> str | None:
    """Device, torch, precision and data of the runs; None if nothing is measured yet."""
    if not analysis.measured:
        return None
    if any(rank.reported for run in analysis.measured for rank in run.ranks):
        return _as_reported(analysis)
    device, torch, precision, data = (joined(analysis.values(key)) for key in _CONDITIONS)
    return f"{device}, torch {torch}, {precision}, {data} data"


def _as_reported(analysis: Analysis) -> str:
    """Device and torch of the user's own program, if they are known, and who measured."""
    device, torch = (joined(analysis.values(key)) for key in ("device", "torch"))
    known = [] if device == NOT_REPORTED else [device]
    known += [] if torch == NOT_REPORTED else [f"torch {torch}"]
    return ", ".join([*known, "own program, throughput as rank 0 reports it"])


def origin(analysis: Analysis) -> list[str]:
    """What was measured where, with which versions, and by which command; one line each. Parts that
    are not recorded, such as the model of a program of the user, are left out."""
    study = analysis.study

    def said(key: str) -> str:
        values = analysis.facts(key)
        return joined([f"{v:,}" if isinstance(v, int) else one_line(v) for v in values])

    facts = {
        "model {}": said("model"),
        "{} parameters": said("parameters"),
        "hpc-amp {}": said("environment.hpc_amp"),
        "CUDA {}": said("environment.cuda"),
        "Python {}": said("environment.python"),
    }
    what = [form.format(text) for form, text in facts.items() if text]
    lines = [", ".join([*what, f"site {study.campaign.site}"])]
    return [*lines, f"made by: {study.command}"] if study.command else lines


def heading(curve: Curve) -> str:
    """`strong scaling, global batch 512`."""
    if not curve.reference.first.has_batch:
        return f"{curve.kind} scaling, the program does not report its batch"
    if curve.kind == "strong":
        return f"strong scaling, global batch {curve.reference.batch_size:,}"
    batch = curve.reference.batch_size / curve.reference.nodes
    return f"weak scaling, batch {batch:,.10g} a node"


def conclusions(curve: Curve) -> list[str]:
    """The fitted law, and where efficiency falls below the floor."""
    fitted = fit_sentence(curve.fit) if curve.fit else _no_fit(curve)
    return [fitted, efficiency_sentence(curve)]


def fit_sentence(fit: Fit) -> str:
    """The serial fraction, its meaning and its uncertainty."""
    start = f"{fit.law}: serial fraction {percent_between(fit.serial_fraction, fit.half_width)}"
    start += " (95 % interval)" if fit.half_width is not None else " (uncertainty not known)"
    if not fit.describes:
        off = percent(fit.largest_deviation)
        return f"{start}, but the law does not describe these points: one deviates by {off}."
    if fit.contradiction:
        return f"{start}, which the law does not allow: {fit.contradiction}."
    base = count(fit.reference_nodes, "node")
    if round(fit.serial_fraction, 3) <= 0:
        meaning = "all of the work scales"
    elif round(fit.serial_fraction, 3) >= 1:
        meaning = "nothing of the work scales"
    elif fit.law == "Amdahl":
        meaning = f"by this law, speedup over {base} stays below {1 / fit.serial_fraction:,.3g}"
    else:
        least = percent(1 - fit.serial_fraction)
        meaning = f"by this law, efficiency relative to {base} stays above {least}"
    if not fit.verifiable:
        return f"{start}; {meaning}. Two numbers of nodes cannot show whether the law holds."
    return f"{start}; {meaning}. Points deviate by at most {percent(fit.largest_deviation, 1)}."


def efficiency_sentence(curve: Curve) -> str:
    """The numbers of nodes between which efficiency falls below the floor."""
    floor = percent(EFFICIENCY_FLOOR)
    crossing = curve.crossing
    if crossing is None:
        largest = curve.points[-1].point.nodes
        if len(curve.points) == 1:
            return f"Efficiency: only {count(largest, 'node')} measured so far."
        return f"Efficiency is {floor} or more on all measured numbers of nodes, up to {largest:,}."
    return (
        f"Efficiency falls below {floor} between {crossing.last_nodes} and "
        f"{count(crossing.first_nodes, 'node')}, at about {crossing.nodes:.3g} by interpolation."
    )


def _no_fit(curve: Curve) -> str:
    law = "Amdahl" if curve.kind == "strong" else "Gustafson"
    if len(curve.points) == 1:
        return f"{law}: a fit needs more than one number of nodes."
    return f"{law}: the law does not fit these points."
