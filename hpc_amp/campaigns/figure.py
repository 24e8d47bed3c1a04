"""Draw pictures of reports with matplotlib, which is imported when a picture is drawn."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None},
}
"""The formats of a picture, and the metadata that each is to be without."""
_DOTS_PER_INCH = 200
# With these settings, equal values give equal files.
_SETTINGS: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "pdf.fonttype": 42,  # TrueType: some publishers refuse the default, Type 3
    "svg.fonttype": "path",
    "svg.hashsalt": "hpc-amp",
    "text.parse_math": False,
}


def make_picture(
    width: float, height: float, draw: Callable[[Figure], object], *, font_size: float = 9
) -> dict[str, bytes]:
    """A picture in each of `FORMATS`. `width` and `height` are in inches, `font_size` is in
    points, and `draw` draws the figure. The settings of the user's matplotlibrc are not used."""
    from matplotlib import rc_context, rcdefaults
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context():
        rcdefaults()
        with rc_context({**_SETTINGS, "font.size": font_size}):
            figure = Figure(figsize=(width, height), layout="constrained", dpi=_DOTS_PER_INCH)
            FigureCanvasAgg(figure)
            draw(figure)
            # Each format would be laid out anew, and drawn once more for that. The engine "none"
            # would do so, too.
            figure.draw_without_rendering()
            figure.set_layout_engine(None)
            return {name: _bytes(figure, name, left_out) for name, left_out in FORMATS.items()}


def _bytes(figure: Figure, suffix: str, metadata: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format=suffix, dpi=_DOTS_PER_INCH, metadata=metadata)
    return out.getvalue()
