"""Dimension order where it is whole, a shortest way around holes, and never in circles."""

from __future__ import annotations

import pytest
from hypothesis import given

from meshmend import Mesh
from meshmend.mesh.grid import Chip
from meshmend.testbed.routes import distances, routes
from tests.strategies import meshes


def passed(mesh: Mesh, here: Chip, there: Chip) -> list[Chip]:
    table, i, found = routes(mesh), mesh.index(here), [here]
    while mesh.chip(i) != there:
        i = int(mesh.neighbour[i, table[i, mesh.index(there)]])
        found.append(mesh.chip(i))
        assert len(found) <= mesh.size
    return found


@pytest.mark.parametrize(
    ("mesh", "here", "there", "way"),
    [
        ("4x4", (0, 0), (2, 2), [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2)]),
        ("4x4", (3, 2), (1, 1), [(3, 2), (3, 1), (2, 1), (1, 1)]),
        ("4x4 -chip@0,1", (0, 0), (0, 2), [(0, 0), (1, 0), (1, 1), (1, 2), (0, 2)]),
        ("2x3 -link@0,1:0,2", (0, 0), (0, 2), [(0, 0), (0, 1), (1, 1), (1, 2), (0, 2)]),
        ("5x5 wrap=xy", (0, 0), (4, 4), [(0, 0), (0, 4), (4, 4)]),
        ("2x2x3", (0, 0, 0), (1, 1, 2), [(0, 0, 0), (0, 1, 0), (1, 1, 0), (1, 1, 1), (1, 1, 2)]),
    ],
)
def test_first_along_the_row_and_round_holes(mesh: str, here: Chip, there: Chip, way: list[Chip]) -> None:
    assert passed(Mesh.parse(mesh), here, there) == way


@given(meshes())
def test_every_hop_comes_nearer(mesh: Mesh) -> None:
    table = routes(mesh)
    for there in mesh.live:
        far = distances(mesh, int(there))
        for here in range(mesh.size):
            way = table[here, there]
            assert (way >= 0) == (far[here] > 0)
            if way >= 0:
                assert far[mesh.neighbour[here, way]] == far[here] - 1
