"""How busy each link was over time: a row for each directed link, dark where it carried something all the time."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import numpy as np

from meshmend.base.theme import INK, MUTED, SERIES, bare, picture
from meshmend.base.units import duration_text, size_text
from meshmend.mesh import WAYS
from meshmend.mesh.grid import link_source

if TYPE_CHECKING:
    from meshmend.simulator.network.network import Flight

BINS = 240


def draw_heat(flight: Flight, path: str | os.PathLike[str]) -> None:
    """Write the picture as PNG or SVG, as the path says."""
    use, way = flight.use(BINS), link_source(flight.schedule.mesh.directed_links)[1]
    rows = np.argsort(way, kind="stable")
    whole, end = flight.seconds, flight.end
    scale, unit = next((s, u) for s, u in ((1, "s"), (1e3, "ms"), (1e6, "µs")) if end * s >= 1 or s == 1e6)
    with picture(path, 9.0, 5.6) as figure:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1, 4])
        figure.subplots_adjust(left=0.09, right=0.9, top=0.87, bottom=0.09, hspace=0.08)
        times = (np.arange(BINS) + 0.5) / BINS * end * scale
        above.fill_between(times, 100 * use.mean(0), color=SERIES[0], alpha=0.25, linewidth=0)
        above.plot(times, 100 * use.mean(0), color=SERIES[0], linewidth=1)
        above.set_ylim(0, 105)
        above.set_yticks([0, 50, 100])
        above.set_ylabel("links busy, %", color=MUTED)
        above.tick_params(labelbottom=False)
        heat = below.imshow(
            100 * use[rows], aspect="auto", cmap="magma_r", vmin=0, vmax=100, interpolation="antialiased",
            extent=(0, end * scale, len(rows), 0),
        )  # fmt: skip
        edges = np.concatenate([[0], np.cumsum(np.bincount(way, minlength=len(WAYS)))])
        below.set_yticks(
            (edges[:-1] + edges[1:]) / 2, [f"{name}\n{n}" for name, n in zip(WAYS, np.diff(edges), strict=True)]
        )
        for edge in edges[1:-1]:
            below.axhline(edge, color="white", linewidth=1.5)
        below.set_ylabel("links, by the way they lead", color=MUTED)
        below.set_xlabel(unit, color=MUTED)
        for axes in (above, below):
            bare(axes)
        bar = figure.colorbar(heat, cax=figure.add_axes((0.92, 0.09, 0.015, 0.6)))
        bar.set_label("busy, % of the time", color=MUTED)
        bar.ax.tick_params(length=0, labelcolor=MUTED)
        bar.outline.set_visible(False)
        done = duration_text(whole) if math.isfinite(whole) else "never whole"
        title = f"{size_text(flight.nbytes)} on {flight.schedule.mesh}: {done}"
        if math.isfinite(whole):
            title += f", {flight.algbw:.3f} B"
        figure.text(0.09, 0.94, title, color=INK, fontsize=11, va="center")
        about = f"{flight.schedule.chunks} chunks, {len(flight.schedule):,} transfers, {len(rows)} directed links"
        figure.text(0.09, 0.9, about, color=MUTED, va="center")
