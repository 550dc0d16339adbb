"""The mesh of a run with `--mesh`: its chips, the holes that dead workers left, and the load of every link.

The layers of a mesh of three dimensions are drawn side by side, without the links between them.
"""

from __future__ import annotations

from typing import Any

from meshmend.errors import Disconnected, MeshmendError
from meshmend.mesh import Mesh
from meshmend.mesh.choose import plan
from meshmend.mesh.numbering import E, S, opposite
from meshmend.report.roster import Condition, Roster

MOST_CHIPS = 1024
"""Larger meshes are not planned and drawn again on every death."""
GONE = {Condition.DEAD, Condition.DUE, Condition.STARTING}


class MeshPicture:
    """Plans again only when other chips are dead."""

    def __init__(self) -> None:
        self._key: tuple[Any, ...] = ()
        self._made: dict[str, Any] | None = None

    def section(self, about: dict[str, Any], roster: Roster) -> dict[str, Any] | None:
        """What is drawn; None if the run has no mesh."""
        text = about.get("mesh")
        if not isinstance(text, str) or not text:
            return None
        dead = frozenset(rank for rank, one in roster.workers.items() if one.condition in GONE)
        key = text, about.get("algorithm"), dead
        if key != self._key:
            self._key = key
            try:
                self._made = _made(Mesh.parse(text), str(about.get("algorithm") or "trees"), dead)
            except MeshmendError:
                self._made = None
        return self._made


def _made(mesh: Mesh, algorithm: str, dead: frozenset[int]) -> dict[str, Any]:
    rank_of = {int(chip): rank for rank, chip in enumerate(mesh.live.tolist())}
    chips: list[dict[str, Any]] = [
        {"row": row, "col": col + sum(layer) * (mesh.cols + 1), "rank": rank_of.get(chip),
         "dead": chip not in rank_of or rank_of[chip] in dead}
        for chip in range(mesh.size)
        for row, col, *layer in [mesh.chip(chip)]
    ]  # fmt: skip
    links: list[list[float]] = []
    width = (mesh.cols + 1) * (mesh.size // (mesh.rows * mesh.cols)) - 1
    found = {"notation": str(mesh), "rows": mesh.rows, "cols": width, "wrap": [*map(bool, mesh.wrap[:2])],
             "algorithm": algorithm, "chips": chips, "links": links, "algbw": None, "bound": None}  # fmt: skip
    left = mesh.fail(chips=[mesh.chip(chip) for chip, rank in rank_of.items() if rank in dead])
    if mesh.size > MOST_CHIPS or not len(left.live):
        return found
    found["notation"] = str(left)
    try:
        made = plan(left, algorithm=algorithm)
    except Disconnected:
        return {**found, "why": "the mesh has fallen apart: sums use plain MPI"}
    most = made.max_load or 1.0
    load = made.load.reshape(mesh.size, -1)
    for chip in left.live.tolist():
        for way in (E, S):
            other = int(left.neighbour[chip, way])
            if other >= 0:
                there, back = float(load[chip, way]) / most, float(load[other, opposite(way)]) / most
                links.append([chip, other, round(there, 3), round(back, 3)])
    return {**found, "algbw": round(made.algbw, 3), "bound": round(made.bound.value, 3)}
