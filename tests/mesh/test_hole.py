"""Holes: their pieces, holes that are alike, and chips that dangle, each compared with a plain search."""

from __future__ import annotations

import numpy as np
import pytest

from meshmend import Mesh, bound
from meshmend.mesh.hole import Hole, Piece, alike, chips_of, count, dangling, dead, kind_of, piece

MESHES = ["8x6", "8x8", "8x8 wrap=y", "12x6 wrap=x", "8x8 wrap=xy"]


def random_hole(mesh: Mesh, random: np.random.Generator, pieces: int) -> Hole:
    kinds = random.choice(["chip", "board", "host", "link"], pieces)
    return tuple(piece(mesh, kind, int(random.integers(count(mesh, kind)))) for kind in kinds)


def holed(mesh: Mesh, hole: Hole) -> Mesh:
    chips, links = dead(mesh, hole)
    return mesh.fail(chips=chips, links=links)


def moved(mesh: Mesh, hole: Hole, down: int, right: int, flip: bool) -> Hole:
    out = [p._replace(row=(p.row + down) % mesh.rows, col=(p.col + right) % mesh.cols) for p in hole]
    return tuple(p._replace(row=(mesh.rows - p.row - p.high) % mesh.rows) for p in out) if flip else tuple(out)


@pytest.mark.parametrize("text", MESHES)
def test_things_are_those_of_the_mesh(text: str) -> None:
    mesh = Mesh.parse(text)
    for kind in ("chip", "board", "host"):
        chips = [chip for i in range(count(mesh, kind)) for chip in chips_of(mesh, piece(mesh, kind, i))]
        assert {kind_of(piece(mesh, kind, i)) for i in range(count(mesh, kind))} <= {kind}
        assert sorted(chips) == [mesh.chip(i) for i in range(mesh.size)]
    links = {tuple(sorted(chips_of(mesh, piece(mesh, "link", i)))) for i in range(count(mesh, "link"))}
    assert links == {tuple(sorted((mesh.chip(i), mesh.chip(mesh.neighbour[i, way])))) for i, way in mesh.links}


@pytest.mark.parametrize("text", MESHES)
def test_holes_that_are_alike_have_one_form_and_equal_bounds(text: str) -> None:
    mesh, random = Mesh.parse(text), np.random.default_rng(1)
    for _ in range(40):
        hole = random_hole(mesh, random, int(random.integers(1, 4)))
        form = alike(mesh, hole)
        down = int(random.integers(mesh.rows)) if mesh.wrap[0] else 0
        right = int(random.integers(mesh.cols)) if mesh.wrap[1] else 0
        assert alike(mesh, moved(mesh, hole, down, right, bool(random.integers(2)))) == form
        assert alike(mesh, form) == form
        before, after = holed(mesh, hole), holed(mesh, form)
        assert [len(part) for part in before.components] == [len(part) for part in after.components]
        assert bound(before.largest()).fraction == bound(after.largest()).fraction


def test_holes_that_differ_keep_apart() -> None:
    mesh = Mesh.parse("16x8 wrap=y")
    hosts = {alike(mesh, (piece(mesh, "host", i),)) for i in range(count(mesh, "host"))}
    assert len(hosts) == 2  # four rows of hosts, alike by reflection; columns alike by shifting
    links = {alike(mesh, (piece(mesh, "link", i),)) for i in range(count(mesh, "link"))}
    assert len(links) == 8 + 8  # 15 rows of vertical links and 16 of horizontal ones


def test_covered_pieces_do_not_count() -> None:
    mesh = Mesh.parse("8x8")
    host = Piece(0, 0, 4, 2)
    assert alike(mesh, (host, Piece(1, 1, 1, 1), Piece(0, 1, 1, 2, link=True))) == alike(mesh, (host,))
    assert len(alike(mesh, (host, Piece(0, 2, 1, 2, link=True)))) == 2


@pytest.mark.parametrize("text", MESHES)
def test_dangling_chips(text: str) -> None:
    mesh, random = Mesh.parse(text), np.random.default_rng(2)
    found = 0
    for _ in range(60):
        hole = random_hole(mesh, random, int(random.integers(1, 16)))
        left = holed(mesh, hole)
        idle: set[tuple[int, int]] = set()
        while True:
            more = {left.chip(i) for i in left.live if (left.neighbour[i] >= 0).sum() <= 1}
            if not more or len(more) == len(left.live):
                idle |= more
                break
            idle |= more
            left = left.fail(chips=more)
        assert dangling(mesh, hole) == idle
        found += bool(idle)
    assert found > 5
