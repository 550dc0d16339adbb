"""Every colour that meshmend draws with, and the look of charts.

Charts are made with matplotlib, which is imported only when one is drawn, and written as PNG or SVG by their path.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meshmend.errors import PictureError

PAPER, INK, MUTED, FAINT, FRAME = "#fcfcfd", "#1f2733", "#667085", "#e4e7ec", "#c5cbd5"
"""Background, text, secondary text, grid lines, and the one line that is left of a chart's frame."""
SERIES = ("#31638c", "#e8590c", "#389c8a", "#c2188b", "#8a6d1f", "#7048a8")
"""Colours of curves and bars, in this order; they differ in lightness too."""
MARK = SERIES[3]
"""A failure on a time line."""

CHIP, IDLE = "#dde2ea", "#d3d8e0"
UP, DOWN = SERIES[1], SERIES[3]
DEAD_CHIP, DEAD_LINK = "#c9777b", "#e03131"
"""Of a mesh: live chips and links without load, the trees that reduce and broadcast, and what is dead."""
LOAD = (
    IDLE, "#cfe6a0", "#acda95", "#88cd8a", "#68c083", "#50ae87", "#389c8a",
    "#2d898c", "#2f768c", "#31638c", "#334e82", "#373874", "#3a2266",
)  # fmt: skip
"""From idle to the max load in falling lightness: viridis reversed, without its yellow, which is too pale on paper."""


@contextmanager
def picture(path: str | os.PathLike[str], wide: float, high: float) -> Iterator[Any]:
    """An empty matplotlib figure, in inches, that is written to the path at the end."""
    where = Path(path)
    if where.suffix.lower() not in (".png", ".svg"):
        raise PictureError(f"cannot draw to {str(where)!r}: give a path that ends in .png or .svg")
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise PictureError("drawing needs matplotlib: pip install 'meshmend[report]'") from None
    with rc_context({"svg.hashsalt": "meshmend", "svg.fonttype": "path", "font.size": 9, "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=(wide, high), facecolor=PAPER, dpi=120)
        yield figure
        about = {"Date": None} if where.suffix.lower() == ".svg" else None
        try:
            figure.savefig(where, metadata=about)
        except OSError as error:
            raise PictureError(f"cannot draw to {str(where)!r}: {error.strerror or error}") from None


def bare(axes: Any) -> None:
    """Remove every line of the frame except the bottom one, and mute the rest."""
    axes.set_facecolor(PAPER)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FRAME)
    axes.tick_params(length=0, labelcolor=MUTED)
