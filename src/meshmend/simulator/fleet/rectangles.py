"""The largest rectangle of whole hosts that a hole leaves: where a job restarts that cannot route around it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from meshmend.mesh import Chip, Mesh
from meshmend.mesh.hole import HOST, Hole, Piece, block_at, chips_of


class Rectangle(NamedTuple):
    """A smaller mesh inside the mesh, across a wrapped rim if need be."""

    row: int
    col: int
    high: int
    wide: int

    @property
    def size(self) -> int:
        """Its chips."""
        return self.high * self.wide

    def holds(self, mesh: Mesh, piece: Piece) -> bool:
        """Whether a failure of this piece would be felt here."""
        inside = [
            (row - self.row) % mesh.rows < self.high and (col - self.col) % mesh.cols < self.wide
            for row, col in chips_of(mesh, piece)
        ]
        return all(inside) if piece.link else any(inside)


def rectangle(mesh: Mesh, hole: Hole) -> Rectangle:
    """The largest rectangle of whole hosts without a piece in it; size 0 where none is left.

    A dead link is kept out by leaving out its first end's host.
    """
    high, wide = HOST
    out = hosts_out(mesh, hole)
    if not out:
        return Rectangle(0, 0, mesh.rows, mesh.cols)
    best = Rectangle(0, 0, 0, 0)
    heads = {row + high for row, _ in out} | (set() if mesh.wrap[0] else {0})
    for head in sorted(head % mesh.rows if mesh.wrap[0] else head for head in heads):
        room = mesh.rows if mesh.wrap[0] else max(0, mesh.rows - head)
        ends = {(row - head) % mesh.rows for row, _ in out if mesh.wrap[0] or row >= head}
        for tall in sorted({room, *ends} - {0}):
            cols = sorted({col for row, col in out if (row - head) % mesh.rows < tall})
            begin, broad = _gap(mesh, cols, wide)
            if tall * broad > best.size:
                best = Rectangle(head, begin, tall, broad)
    return best


def _gap(mesh: Mesh, cols: list[int], wide: int) -> tuple[int, int]:
    """Begin and width of the widest run of columns between hosts at these columns."""
    if not cols:
        return 0, mesh.cols
    after = [*cols[1:], cols[0] + mesh.cols] if mesh.wrap[1] else [*cols[1:], mesh.cols]
    gaps = [(there - col - wide, (col + wide) % mesh.cols) for col, there in zip(cols, after, strict=True)]
    broad, begin = max(gaps if mesh.wrap[1] else [*gaps, (cols[0], 0)])
    return begin, max(0, broad)


def hosts_out(mesh: Mesh, hole: Iterable[Piece]) -> set[Chip]:
    """The hosts, by their first chip, that a hole takes out of use; of a dead link only its first end's."""
    return {
        block_at(mesh, "host", chip)[:2]
        for piece in hole
        for chip in (chips_of(mesh, piece)[:1] if piece.link else chips_of(mesh, piece))
    }
