"""A report as a single HTML file, without scripts and without links to other files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hpc_amp import __version__
from hpc_amp.campaigns.words import count, percent
from hpc_amp.study import sentences
from hpc_amp.study.analysis import Analysis
from hpc_amp.study.compare import comparison_table, differences, labels
from hpc_amp.study.curve import Curve
from hpc_amp.study.folder import Kind
from hpc_amp.study.tables import allreduce_table, points_table, shares_table, unmeasured_table

# The fills of the parts of a bar, which differ without colour too.
_FILLS = {
    "compute": "#0072b2",
    "communication": "url(#hatched)",
    "data wait": "url(#dotted)",
}


def to_html(
    analyses: Sequence[Analysis], pictures: Mapping[Kind, bytes], remark: str | None = None
) -> str:
    """The page of one study, or of two studies and their comparison.

    `pictures` has an SVG for each kind of scaling. `remark` says why there are no pictures.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    names = labels(*analyses) if len(analyses) == 2 else (analyses[0].study.name,)
    return environment.get_template("report.html.j2").render(
        title=" and ".join(names),
        version=__version__,
        studies=[_study(one, name) for one, name in zip(analyses, names, strict=True)],
        pictures=[
            {"kind": kind, "svg": Markup(embedded(svg, kind))} for kind, svg in pictures.items()
        ],
        parts=[{"name": name, "fill": fill} for name, fill in _FILLS.items()],
        comparison=_comparison(*analyses) if len(analyses) == 2 else None,
        remark=remark,
    )


def embedded(svg: bytes, prefix: str) -> str:
    """An SVG file as an element of a page: without prologue and metadata, and with `prefix` before
    all identifiers, so that they differ from those of other pictures."""
    text = svg.decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", text)
    return text.strip()


def _study(analysis: Analysis, label: str) -> dict[str, Any]:
    study = analysis.study
    return {
        "label": label,
        "name": study.name,
        "id": study.id,
        "created": study.created,
        "plan": sentences.plan(analysis),
        "conditions": sentences.conditions(analysis),
        "origin": sentences.origin(analysis),
        "caveats": analysis.caveats,
        "curves": [_curve(analysis, curve) for curve in analysis.curves],
        "unmeasured": unmeasured_table(analysis),
    }


def _curve(analysis: Analysis, curve: Curve) -> dict[str, Any]:
    return {
        "heading": sentences.heading(curve),
        "conclusions": sentences.conclusions(curve),
        "points": points_table(analysis, curve.kind),
        "shares": None if curve.reference.is_reported else shares_table(curve),
        "bars": [] if curve.reference.is_reported else _bars(curve),
        "allreduce": allreduce_table(curve),
    }


def _bars(curve: Curve) -> list[dict[str, Any]]:
    """The shares of a step on each number of nodes, as rectangles in percent."""
    bars = []
    for scaled in curve.points:
        shares = scaled.point.shares
        values = dict(
            zip(_FILLS, (shares.compute, shares.communication, shares.data_wait), strict=True)
        )
        parts, start = [], 0.0
        for name, value in values.items():
            width = 100 * max(value or 0, 0)
            parts.append({"start": f"{start:.2f}", "width": f"{width:.2f}", "fill": _FILLS[name]})
            start += width
        nodes = count(scaled.point.nodes, "node")
        text = ", ".join(f"{name} {percent(value)}" for name, value in values.items())
        bars.append({"nodes": nodes, "parts": parts, "text": f"{nodes}: {text}"})
    return bars


def _comparison(first: Analysis, second: Analysis) -> dict[str, Any]:
    one, two = labels(first, second)
    return {
        "title": f"{two} against {one}",
        "differences": differences(first, second),
        "table": comparison_table(first, second),
    }
