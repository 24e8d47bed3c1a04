"""A report for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from hpc_amp.study import sentences
from hpc_amp.study.analysis import Analysis
from hpc_amp.study.compare import comparison_table, differences, labels
from hpc_amp.study.tables import (
    Table,
    allreduce_table,
    as_text,
    points_table,
    shares_table,
    unmeasured_table,
)


def to_text(analyses: Sequence[Analysis]) -> str:
    """One study, or two and their comparison."""
    parts = [part for analysis in analyses for part in _study(analysis)]
    if len(analyses) == 2:
        parts.append(_comparison(*analyses))
    return "\n\n".join(parts)


def _study(analysis: Analysis) -> list[str]:
    head = [f"{analysis.study.name}  {analysis.study.id}  {sentences.plan(analysis)}"]
    conditions = sentences.conditions(analysis)
    parts = ["\n".join([*head, conditions] if conditions else head)]
    for curve in analysis.curves:
        parts.append(
            _section(
                sentences.heading(curve),
                points_table(analysis, curve.kind),
                sentences.conclusions(curve),
            )
        )
        parts.append(_section(f"where a step's time goes, {curve.kind}", shares_table(curve), []))
        allreduce = allreduce_table(curve)
        if allreduce is not None:
            title = f"all-reduce of the gradients alone, {curve.kind}"
            parts.append(_section(title, allreduce, []))
    unmeasured = unmeasured_table(analysis)
    if unmeasured is not None:
        parts.append(_section("not measured", unmeasured, []))
    if analysis.caveats:
        parts.append("\n".join(["warnings", *(f"  {c.topic}: {c.text}" for c in analysis.caveats)]))
    return parts


def _comparison(first: Analysis, second: Analysis) -> str:
    one, two = labels(first, second)
    table = comparison_table(first, second)
    title = f"{two} against {one}"
    if table is None:
        return f"{title}: no point is measured in both"
    return _section(title, table, differences(first, second))


def _section(title: str, table: Table, sentences: Sequence[str]) -> str:
    return "\n".join([title, *(f"  {line}" for line in [*as_text(table), *sentences])])
