"""The table for a proposal, in LaTeX: needs the package booktabs and nothing else."""

from __future__ import annotations

import re

from hpc_amp.study import sentences
from hpc_amp.study.analysis import Analysis
from hpc_amp.study.curve import Curve
from hpc_amp.study.tables import points_table

_COLUMNS = {
    "nodes": "Nodes",
    "ranks": "Ranks",
    "step ms": "Step (ms)",
    "samples/s": "Samples/s",
    "speedup": "Speedup",
    "efficiency": "Efficiency",
}
# A text that could mean something else to TeX, by what prints it. A dash is kept from becoming a
# longer one together with the next, and `?` and `!` from turning around before a backquote.
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"{\char34}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "-": "-{}",
    "±": r"$\pm$",
}


def escape(text: str) -> str:
    """A text that LaTeX prints as it is, in text and in a table."""
    return "".join(_SPECIAL.get(letter, letter) for letter in text)


def to_latex(analysis: Analysis) -> str:
    """One table for each kind of scaling; a comment where nothing is measured yet."""
    if not analysis.curves:
        return f"% {analysis.study.name}: nothing is measured yet\n"
    return "\n".join(_table(analysis, curve) for curve in analysis.curves)


def _table(analysis: Analysis, curve: Curve) -> str:
    table = points_table(analysis, curve.kind)
    places = [table.columns.index(title) for title in _COLUMNS]
    rows = [" & ".join(escape(row[place]) for place in places) for row in table.rows]
    titles = " & ".join(escape(title) for title in _COLUMNS.values())
    return "\n".join(
        [
            "% \\usepackage{booktabs}",
            "\\begin{table}",
            "  \\centering",
            f"  \\caption{{{_caption(analysis, curve)}}}",
            f"  \\label{{tab:{_label(analysis, curve)}}}",
            "  \\medskip",
            f"  \\begin{{tabular}}{{{'r' * len(places)}}}",
            "    \\toprule",
            f"    {titles} \\\\",
            "    \\midrule",
            *(f"    {row} \\\\" for row in rows),
            "    \\bottomrule",
            "  \\end{tabular}",
            "\\end{table}",
            "",
        ]
    )


def _caption(analysis: Analysis, curve: Curve) -> str:
    heading = sentences.heading(curve)
    first = f"{heading[0].upper()}{heading[1:]} ({sentences.conditions(analysis)})."
    return escape(" ".join([first, *sentences.conclusions(curve)]))


def _label(analysis: Analysis, curve: Curve) -> str:
    """Letters, digits and dashes only: a label is not printed."""
    return re.sub(r"[^A-Za-z0-9]+", "-", f"{analysis.study.name}-{curve.kind}-scaling")
