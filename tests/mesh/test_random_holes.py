"""Random failures: seeded, exactly as many as asked for, and whole boards and hosts only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshmend.errors import MeshError
from meshmend.mesh import Mesh
from meshmend.mesh.grid import Chip
from tests.strategies import meshes

SHAPES = {"chips": (1, 1), "boards": (2, 2), "hosts": (4, 2)}
KINDS = [*SHAPES, "links"]


def blocks(mesh: Mesh, kind: str) -> list[set[Chip]]:
    """The blocks of this kind, clipped at the rim, whose chips all live."""
    height, width = SHAPES[kind]
    found: dict[Chip, set[Chip]] = {}
    for r in range(mesh.rows):
        for c in range(mesh.cols):
            found.setdefault((r // height, c // width), set()).add((r, c))
    return [block for block in found.values() if not block & mesh.dead_chips]


@given(meshes(9), st.integers(0, 2**63), st.sampled_from(list(SHAPES)), st.data())
def test_exactly_so_many_whole_blocks_die(mesh: Mesh, seed: int, kind: str, data: st.DataObject) -> None:
    alive = blocks(mesh, kind)
    count = data.draw(st.integers(0, len(alive)))
    if sum(map(len, alive)) == len(mesh.live) and count == len(alive):
        with pytest.raises(MeshError, match="at least one must be alive"):
            mesh.fail_random(seed, **{kind: count})
        return
    failed = mesh.fail_random(seed, **{kind: count})
    new = failed.dead_chips - mesh.dead_chips
    touched = [block for block in alive if block & new]
    assert len(touched) == count
    assert set().union(*touched) == new


@given(meshes(9), st.integers(0, 2**63), st.data())
def test_exactly_so_many_links_die_and_no_chip(mesh: Mesh, seed: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(mesh.links)))
    failed = mesh.fail_random(seed, links=count)
    assert failed.dead_chips == mesh.dead_chips
    assert len(failed.links) == len(mesh.links) - count


@given(meshes(9), st.integers(0, 2**63), st.sampled_from(KINDS), st.floats(0, 0.9))
def test_a_rate_is_a_part_of_what_lives(mesh: Mesh, seed: int, kind: str, rate: float) -> None:
    things = len(mesh.links) if kind == "links" else len(blocks(mesh, kind))
    count = round(rate * things)
    if count and count == things and kind != "links":
        return  # a small mesh would be all dead
    assert mesh.fail_random(seed, **{kind: rate}) == mesh.fail_random(seed, **{kind: count})


@given(meshes(9), st.integers(0, 2**63))
def test_the_same_seed_gives_the_same_hole(mesh: Mesh, seed: int) -> None:
    counts: dict[str, float] = {"links": 0.2, "chips": 0.2}
    assert mesh.fail_random(seed, **counts) == mesh.fail_random(seed, **dict(reversed(counts.items())))


def test_seeds_give_different_holes() -> None:
    assert len({Mesh(16, 16).fail_random(seed, chips=8) for seed in range(50)}) == 50


@pytest.mark.parametrize(
    ("text", "seed", "counts", "expected"),
    [
        ("4x4", 0, {"chips": 3}, "4x4 -1x2@0,2 -chip@2,3"),
        ("8x8", 0, {"boards": 1, "hosts": 1}, "8x8 -2x4@0,4 -2x2@2,4"),
        ("4x4 wrap=xy", 1, {"links": 2}, "4x4 wrap=xy -link@3,1:3,2 -link@3,2:3,3"),
    ],
)
def test_a_seed_gives_this_hole_on_every_machine(text: str, seed: int, counts: dict[str, float], expected: str) -> None:
    assert str(Mesh.parse(text).fail_random(seed, **counts)) == expected


def test_kinds_add_up() -> None:
    failed = Mesh(16, 16).fail_random(5, hosts=2, boards=3, chips=4, links=6)
    assert len(failed.dead_chips) == 2 * 8 + 3 * 4 + 4
    assert len(failed.dead_links) == 6


def test_no_counts_kill_nothing() -> None:
    assert Mesh(4, 4).fail_random(0) == Mesh(4, 4)
    assert Mesh(4, 4).fail_random(0, chips=0, links=0.0) == Mesh(4, 4)


def test_numpy_counts_are_counts() -> None:
    mesh = Mesh(6, 6)
    assert mesh.fail_random(1, chips=np.int64(5)) == mesh.fail_random(1, chips=5)
    assert mesh.fail_random(1, chips=np.float64(0.25)) == mesh.fail_random(1, chips=9)


@pytest.mark.parametrize(
    ("seed", "counts", "says"),
    [
        (0, {"chips": 17}, "chips=17: this mesh has 16 chips .* choose 0 to 16"),
        (0, {"chips": -1}, "chips=-1: this mesh has 16 chips"),
        (0, {"links": 25}, "links=25: this mesh has 24 links .* choose 0 to 24"),
        (0, {"hosts": 3}, "hosts=3: this mesh has 2 hosts .* choose 0 to 2"),
        (0, {"chips": 16}, "at least one must be alive"),
        (0, {"boards": 4}, "at least one must be alive"),
        (0, {"chips": 1.0}, "chips=1.0: a rate lies between 0 and 1; give a whole number"),
        (0, {"chips": -0.1}, "chips=-0.1: a rate lies between 0 and 1"),
        (0, {"chips": float("nan")}, "chips=nan: a rate lies between 0 and 1"),
        (0, {"chips": "3"}, "chips='3': give a whole number or a rate"),
        (0, {"chips": True}, "chips=True: give a whole number or a rate"),
        (0, {"chip": 1, "host": 2}, "cannot fail chip, host at random: choose from chips, links, boards, hosts"),
        (-1, {"chips": 1}, "seed=-1"),
        ("one", {"chips": 1}, "seed='one'"),
    ],
)
def test_what_cannot_be_asked_for_is_said(seed: Any, counts: dict[str, Any], says: str) -> None:
    with pytest.raises(MeshError, match=says):
        Mesh(4, 4).fail_random(seed, **counts)


def test_dead_blocks_cannot_die_again() -> None:
    mesh = Mesh.parse("4x4 -chip@0,0")
    with pytest.raises(MeshError, match="hosts=2: this mesh has 1 host that is wholly alive"):
        mesh.fail_random(0, hosts=2)
    assert mesh.fail_random(0, hosts=1) == Mesh.parse("4x4 -chip@0,0 -4x2@0,2")
