"""Charts with matplotlib, which is imported only when one is drawn: one look, and PNG or SVG as the path says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meshmend.errors import PictureError

PAPER, INK, MUTED, FAINT = "#fcfcfd", "#1f2733", "#667085", "#e4e7ec"
SERIES = ("#31638c", "#e8590c", "#389c8a", "#c2188b", "#8a6d1f", "#7048a8")
"""Colours of curves and bars, in this order; they differ in lightness too."""


@contextmanager
def picture(path: str | os.PathLike[str], wide: float, high: float) -> Iterator[Any]:
    """An empty matplotlib figure of so many inches, written to the path at the end."""
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
    """Take away all lines of the frame but the one below, and mute the rest."""
    axes.set_facecolor(PAPER)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#c5cbd5")
    axes.tick_params(length=0, labelcolor=MUTED)
