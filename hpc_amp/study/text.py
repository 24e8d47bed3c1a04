"""A report as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from hpc_amp.campaigns.reported import HOW, SILENT
from hpc_amp.campaigns.tables import Table, as_text
from hpc_amp.study import sentences
from hpc_amp.study.analysis import Analysis
from hpc_amp.study.compare import comparison_table, differences, labels
from hpc_amp.study.tables import allreduce_table, points_table, shares_table, unmeasured_table

# Lines are at least this wide, also if the terminal reports less.
_NARROWEST = 40
# No line is broken at this blank, so that a number keeps its unit.
_KEPT = "\N{NO-BREAK SPACE}"


def to_text(analyses: Sequence[Analysis], width: int | None = None) -> str:
    """The report of one study, or of two studies and their comparison. If `width` is given,
    sentences are broken into lines of this number of characters."""
    parts = [part for analysis in analyses for part in _study(analysis, width)]
    if len(analyses) == 2:
        first, second = analyses
        parts.append(_comparison(first, second, width))
    return "\n\n".join(parts)


def _study(analysis: Analysis, width: int | None) -> list[str]:
    head = [f"{analysis.study.name}  {analysis.study.id}  {sentences.plan(analysis)}"]
    conditions = sentences.conditions(analysis)
    head += [conditions] if conditions else []
    head += sentences.origin(analysis)
    parts = ["\n".join(line for sentence in head for line in _broken(sentence, width, ""))]
    for curve in analysis.curves:
        parts.append(
            _section(
                sentences.heading(curve),
                points_table(analysis, curve.kind),
                sentences.conclusions(curve),
                width,
            )
        )
        if not curve.reference.is_reported:
            parts.append(_section(f"where a step's time goes, {curve.kind}", shares_table(curve)))
        allreduce = allreduce_table(curve)
        if allreduce is not None:
            title = f"all-reduce of the gradients alone, {curve.kind}"
            parts.append(_section(title, allreduce))
    unmeasured = unmeasured_table(analysis)
    if unmeasured is not None:
        parts.append(_section("not measured", unmeasured))
    if any(run.reason == SILENT for run in analysis.unmeasured):
        parts.append(HOW)
    if analysis.caveats:
        warnings = [f"{caveat.topic}: {caveat.text}" for caveat in analysis.caveats]
        lines = [line for one in warnings for line in _broken(one, width)]
        parts.append("\n".join(["warnings", *lines]))
    return parts


def _comparison(first: Analysis, second: Analysis, width: int | None) -> str:
    one, two = labels(first, second)
    table = comparison_table(first, second)
    title = f"{two} against {one}"
    if table is None:
        return f"{title}: no point is measured in both studies"
    return _section(title, table, differences(first, second), width)


def _section(
    title: str, table: Table, sentences: Sequence[str] = (), width: int | None = None
) -> str:
    rows = [f"  {row}" for row in as_text(table)]
    lines = [line for sentence in sentences for line in _broken(sentence, width)]
    return "\n".join([title, *rows, *lines])


def _broken(sentence: str, width: int | None, indent: str = "  ") -> list[str]:
    """A sentence as lines. All lines but the first are indented further."""
    if width is None:
        return [indent + sentence]
    lines = textwrap.wrap(
        sentence.replace(" %", f"{_KEPT}%"), max(width, _NARROWEST), initial_indent=indent,
        subsequent_indent=f"{indent}  ", break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return [line.replace(_KEPT, " ") for line in lines]
