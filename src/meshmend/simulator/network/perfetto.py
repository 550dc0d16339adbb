"""A flight as a trace file, in the JSON that Perfetto reads: a chip is a process, a link a track."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np

from meshmend.errors import PictureError
from meshmend.mesh import WAYS
from meshmend.mesh.grid import link_source

if TYPE_CHECKING:
    from meshmend.simulator.network.network import Flight

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
        chip, way = link_source(link)
        row, col = mesh.chip(chip)
        to = mesh.chip(int(mesh.neighbour[chip, way]))
        for kind, name in (("process_name", f"chip {row},{col}"), ("thread_name", f"{WAYS[way]} to {to[0]},{to[1]}")):
            about = {"ph": "M", "pid": chip, "tid": link, "name": kind, "args": {"name": name}}
            file.write(f"{comma}\n{json.dumps(about)}")
            comma = ","
    busy = 1e6 * flight.service
    for i in sent.tolist():
        link, chunk, arrive = int(table.link[i]), int(table.chunk[i]), float(flight.arrive[i])
        name = f"{'result' if table.copy[i] else 'part'} {chunk}" + ("" if np.isfinite(arrive) else " (lost)")
        span = {
            "ph": "X", "pid": link_source(link)[0], "tid": link, "name": name,
            "ts": 1e6 * float(flight.begin[i]), "dur": busy,
            "args": {"chunk": chunk, "arrives": 1e6 * arrive if np.isfinite(arrive) else None},
        }  # fmt: skip
        file.write(f",\n{json.dumps(span)}")
    file.write("\n]}\n")
