"""The largest rectangle of whole hosts that a hole leaves, compared with a plain search."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from meshmend import Mesh
from meshmend.mesh.hole import HOST, Hole, Piece, count, piece
from meshmend.simulator.fleet.rectangles import Rectangle, hosts_out, rectangle


def random_hole(mesh: Mesh, random: np.random.Generator, pieces: int) -> Hole:
    kinds = random.choice(["chip", "board", "host", "link"], pieces)
    return tuple(piece(mesh, kind, int(random.integers(count(mesh, kind)))) for kind in kinds)


def plain_rectangle(mesh: Mesh, out: set[tuple[int, int]]) -> int:
    high, wide = HOST
    down, across = mesh.rows // high, mesh.cols // wide
    blocked = {(row // high, col // wide) for row, col in out}
    best = 0
    for r, c, h, w in product(range(down), range(across), range(1, down + 1), range(1, across + 1)):
        if (r + h > down and not mesh.wrap[0]) or (c + w > across and not mesh.wrap[1]):
            continue
        cells = {((r + i) % down, (c + j) % across) for i in range(h) for j in range(w)}
        if not cells & blocked:
            best = max(best, h * high * w * wide)
    return best


@pytest.mark.parametrize("text", ["16x8", "16x8 wrap=y", "16x8 wrap=x", "12x10 wrap=xy"])
def test_the_largest_rectangle(text: str) -> None:
    mesh, random = Mesh.parse(text), np.random.default_rng(3)
    for pieces in [0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 8] * 3:
        hole = random_hole(mesh, random, pieces)
        best = rectangle(mesh, hole)
        assert best.size == plain_rectangle(mesh, hosts_out(mesh, hole))
        assert not any(best.holds(mesh, one) for one in hole)


def test_a_rectangle_feels_only_what_it_holds() -> None:
    mesh = Mesh.parse("16x8 wrap=y")
    around = Rectangle(0, 6, 16, 4)
    """Columns 6, 7, 0 and 1."""
    assert around.holds(mesh, Piece(0, 0, 4, 2)) and not around.holds(mesh, Piece(0, 2, 4, 2))
    assert around.holds(mesh, Piece(0, 7, 1, 2, link=True))
    assert not around.holds(mesh, Piece(0, 1, 1, 2, link=True))
