"""The grid: ways and their opposites, link numbers both ways, wraps, and links that are each counted once."""

from __future__ import annotations

import numpy as np
import pytest

from meshmend import Mesh, MeshError
from meshmend.mesh.grid import B, E, F, Grid, N, S, W, opposite

GRIDS = [Grid(1, 1), Grid(1, 5), Grid(4, 3), Grid(4, 4, (True, True)), Grid(3, 5, (False, True))]
GRIDS += [Grid(2, 3, layers=4), Grid(3, 4, (True, False, True), layers=3), Grid(1, 1, layers=3), Grid(4, 4, layers=1)]


def test_ways_lead_back() -> None:
    assert [opposite(way) for way in (N, E, S, W, F, B)] == [S, W, N, E, B, F]
    assert opposite(np.array([N, E], np.int8)).tolist() == [S, W]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_neighbours_are_those_around_a_chip_and_lead_back(grid: Grid) -> None:
    for chip in range(grid.size):
        around = dict(grid.around(grid.chip(chip)))
        assert grid.index(grid.chip(chip)) == chip
        for way in range(len(grid.ways)):
            there = int(grid.neighbour[chip, way])
            assert (grid.chip(there) if there >= 0 else None) == around.get(way)
            if there >= 0:
                assert grid.neighbour[there, opposite(way)] == chip
                assert grid.way(grid.chip(chip), grid.chip(there)) in (way, opposite(way))


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_link_numbers_name_a_chip_and_a_way(grid: Grid) -> None:
    chip, way = np.indices((grid.size, len(grid.ways))).reshape(2, -1)
    numbers = grid.link_number(chip, way)
    assert numbers.tolist() == list(range(grid.link_numbers))
    assert all((a == b).all() for a, b in zip(grid.link_source(numbers), (chip, way), strict=True))
    there = grid.directed_links
    assert (grid.reverse[grid.reverse[there]] == there).all() and (grid.reverse[there] != there).all()
    assert (grid.neighbour.ravel()[grid.reverse[there]] == grid.link_source(there)[0]).all()
    assert len(grid.directed_links) == 2 * len(grid.links)
    pairs = {tuple(sorted(grid.ends(int(chip), int(way)))) for chip, way in grid.links}
    assert len(pairs) == len(grid.links) and all(grid.link(pair) == pair for pair in pairs)


def test_a_mesh_is_a_grid_with_a_hole() -> None:
    mesh = Mesh.parse("4x4 wrap=y -chip@1,1 -link@0,0:0,1")
    grid = Grid(4, 4, (False, True))
    assert isinstance(mesh, Grid) and mesh != grid
    assert len(grid.links) - len(mesh.links) == 4 + 1
    assert [array.tolist() for array in grid.positions(np.array([5, 14]))] == [[1, 3], [1, 2]]
    with pytest.raises(MeshError, match="4,0"):
        grid.index((4, 0))
