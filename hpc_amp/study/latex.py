"""The table for a proposal, in LaTeX. It needs the package booktabs."""

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
# Characters with a special meaning in TeX, and the text that prints them. `{}` after a hyphen keeps
# two hyphens from becoming a dash. A plain backquote would change `?` and `!` before it.
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
    """Escape a text, so that LaTeX prints it unchanged."""
    return "".join(_SPECIAL.get(letter, letter) for letter in text)


def to_latex(analysis: Analysis) -> str:
    """A table for each kind of scaling, or a comment if nothing is measured yet."""
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
    """The label of a table, of letters, digits and hyphens."""
    return re.sub(r"[^A-Za-z0-9]+", "-", f"{analysis.study.name}-{curve.kind}-scaling")
