"""Two views of a simulated all-reduce: a heat map of the links, and a trace for Perfetto.

The heat map has a row for each directed link, dark where it carried something all the time. The trace file is the JSON
that Perfetto reads: a chip is a process, a link a track.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import numpy as np

from meshmend.base.theme import INK, MUTED, SERIES, bare, picture
from meshmend.base.units import duration_text, size_text

if TYPE_CHECKING:
    from meshmend.simulator.network.network import Flight
import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from meshmend.errors import PictureError

BINS = 240


def draw_heat(flight: Flight, path: str | os.PathLike[str]) -> None:
    """Write the picture as PNG or SVG, as the path says."""
    use, way = flight.use(BINS), flight.schedule.mesh.link_source(flight.schedule.mesh.directed_links)[1]
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
        ways = flight.schedule.mesh.ways
        edges = np.concatenate([[0], np.cumsum(np.bincount(way, minlength=len(ways)))])
        below.set_yticks(
            (edges[:-1] + edges[1:]) / 2, [f"{name}\n{n}" for name, n in zip(ways, np.diff(edges), strict=True)]
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


MOST = 2_000_000
"""Transfers in a trace: at about 100 bytes each, more make files that no viewer opens."""


def write_trace(flight: Flight, path: str | os.PathLike[str]) -> None:
    """Write every transfer as a span on the track of its link; gzipped where the path ends in .gz."""
    where = Path(path)
    if where.suffixes[-1:] != [".json"] and where.suffixes[-2:] != [".json", ".gz"]:
        raise PictureError(f"cannot write a trace to {str(where)!r}: give a path that ends in .json or .json.gz")
    sent = np.flatnonzero(np.isfinite(flight.begin))
    if len(sent) > MOST:
        raise PictureError(
            f"{len(sent):,} transfers are too many for a trace, which holds {MOST:,}: give fewer chunks with --chunks"
        )
    try:
        with gzip.open(where, "wt") if where.suffix == ".gz" else where.open("w") as file:
            _write(flight, sent, file)
    except OSError as error:
        raise PictureError(f"cannot write a trace to {str(where)!r}: {error.strerror or error}") from None


def _write(flight: Flight, sent: np.ndarray[tuple[int], np.dtype[np.int64]], file: TextIO) -> None:
    table, mesh = flight.schedule, flight.schedule.mesh
    file.write('{"displayTimeUnit": "ns", "traceEvents": [')
    comma = ""
    for link in np.unique(table.link[sent]).tolist():
        chip, way = mesh.link_source(link)
        to = mesh.name(int(mesh.neighbour[chip, way]))
        for kind, name in (("process_name", f"chip {mesh.name(chip)}"), ("thread_name", f"{mesh.ways[way]} to {to}")):
            about = {"ph": "M", "pid": chip, "tid": link, "name": kind, "args": {"name": name}}
            file.write(f"{comma}\n{json.dumps(about)}")
            comma = ","
    busy = 1e6 * flight.service
    for i in sent.tolist():
        link, chunk, arrive = int(table.link[i]), int(table.chunk[i]), float(flight.arrive[i])
        name = f"{'result' if table.copy[i] else 'part'} {chunk}" + ("" if np.isfinite(arrive) else " (lost)")
        span = {
            "ph": "X", "pid": mesh.link_source(link)[0], "tid": link, "name": name,
            "ts": 1e6 * float(flight.begin[i]), "dur": float(busy[link]),
            "args": {"chunk": chunk, "arrives": 1e6 * arrive if np.isfinite(arrive) else None},
        }  # fmt: skip
        file.write(f",\n{json.dumps(span)}")
    file.write("\n]}\n")
