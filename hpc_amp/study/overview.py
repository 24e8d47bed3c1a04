"""How far a study is, for people and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hpc_amp.campaigns.tables import Table, as_text
from hpc_amp.campaigns.words import NOT_KNOWN, count, joined, on_nodes, one_line
from hpc_amp.study.draft import Draft
from hpc_amp.study.folder import Study
from hpc_amp.study.progress import Progress
from hpc_amp.study.recipe import Recipe


def describe_draft(draft: Draft) -> str:
    """What a study would measure."""
    study, recipe, plan = draft.study, draft.recipe, draft.plan
    nodes = joined([f"{number:,}" for number in study.nodes])
    lines = [
        f"{study.name}: {joined(list(study.kinds))} scaling on {nodes} node"
        f"{'' if study.nodes == (1,) else 's'}, {count(study.repeats, 'repeat')}, "
        f"site {plan.site.name}, {plan.launcher.name}",
        "; ".join(f"{kind}: {batch}" for kind, batch in draft.batches.items()),
        f"{count(recipe.warmup, 'step')} of warm-up, then {_measured(recipe)}; "
        f"{'evaluations' if recipe.evaluate else 'no evaluation'} and "
        f"{'checkpoints as the job says' if recipe.checkpoints else 'no checkpoint'} meanwhile",
    ]
    if study.shared:
        lines.append(f"{joined(list(study.kinds))} share their runs {on_nodes(study.shared)}")
    return "\n  ".join(lines)


def _measured(recipe: Recipe) -> str:
    if recipe.steps is not None:
        return f"{count(recipe.steps, 'step')} measured"
    return f"about {recipe.seconds:g} s measured"


def describe(study: Study, items: Sequence[Progress]) -> str:
    """A line of totals, then one line a run."""
    states = Counter(one.state for one in items)
    told = joined([f"{number} {state}" for state, number in states.items()])
    rows = tuple(
        (
            joined([run.kind for run in one.measurement.counts_for]),
            f"{one.measurement.first.nodes:,}",
            f"{one.measurement.first.repeat}",
            one.state,
            one.job_id or NOT_KNOWN,
            one_line(one.run.reason) or NOT_KNOWN,
        )
        for one in items
    )
    columns = ("scaling", "nodes", "repeat", "state", "job", "reason")
    table = Table(columns, rows, words=frozenset({"scaling", "state", "job", "reason"}))
    head = f"{study.name}  {study.id}  {count(len(items), 'run')}: {told}"
    return "\n".join([head, *(f"  {line}" for line in as_text(table))])


def to_plain(study: Study, items: Sequence[Progress]) -> dict[str, Any]:
    """The same for JSON."""
    return {
        "name": study.name,
        "study": str(study.folder),
        "runs": [
            {
                "counts_for": [run.folder_name for run in one.measurement.counts_for],
                "nodes": one.measurement.first.nodes,
                "state": one.state,
                "job_id": one.job_id,
                "reason": one.run.reason,
                "run_dir": str(one.run.run_dir) if one.run.run_dir is not None else None,
            }
            for one in items
        ],
    }
