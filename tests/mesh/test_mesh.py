"""A mesh is a value: what is dead, who is whose neighbour, and how the live chips hang together."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pickle
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshmend.errors import Disconnected, MeshError
from meshmend.mesh import Mesh, text_map

COMPASS = {"N": (-1, 0), "E": (0, 1), "S": (1, 0), "W": (0, -1)}
BARE = "4x4 -4x1@0,1"


def graph(mesh: Mesh) -> nx.Graph:
    """The live chips and links, made by networkx from the mesh's fields alone."""
    out = nx.grid_2d_graph(mesh.rows, mesh.cols, periodic=mesh.wrap)
    out.remove_edges_from(mesh.dead_links)
    out.remove_nodes_from(mesh.dead_chips)
    return out


@st.composite
def holed(draw: st.DrawFn, most: int = 7) -> Mesh:
    """Any mesh up to `most` x `most`, connected or not."""
    rows, cols = draw(st.integers(1, most)), draw(st.integers(1, most))
    wrap = (rows > 2 and draw(st.booleans()), cols > 2 and draw(st.booleans()))
    intact = nx.grid_2d_graph(rows, cols, periodic=wrap)
    chips = draw(st.sets(st.sampled_from(sorted(intact.nodes)), max_size=rows * cols - 1))
    links = draw(st.sets(st.sampled_from(sorted(intact.edges)))) if intact.edges else set()
    return Mesh(rows, cols, wrap, frozenset(chips), frozenset(links))


@given(holed())
def test_a_neighbour_is_one_step_away_and_alive(mesh: Mesh) -> None:
    dead_links = {frozenset(link) for link in mesh.dead_links}
    for row, col in itertools.product(range(mesh.rows), range(mesh.cols)):
        for way, (dr, dc) in enumerate(COMPASS.values()):
            there = (row + dr, col + dc)
            if mesh.wrap[0]:
                there = (there[0] % mesh.rows, there[1])
            if mesh.wrap[1]:
                there = (there[0], there[1] % mesh.cols)
            inside = there[0] in range(mesh.rows) and there[1] in range(mesh.cols)
            chips_live = not {(row, col), there} & mesh.dead_chips
            exists = inside and chips_live and frozenset([(row, col), there]) not in dead_links
            expected = there[0] * mesh.cols + there[1] if exists else -1
            assert mesh.neighbour[row * mesh.cols + col, way] == expected


@given(holed())
def test_the_way_back_leads_back(mesh: Mesh) -> None:
    chip, way = np.nonzero(mesh.neighbour >= 0)
    there = mesh.neighbour[chip, way]
    assert np.array_equal(mesh.neighbour[there, way ^ 2], chip)
    assert all(
        mesh.way(mesh.chip(a), mesh.chip(b)) == w for a, b, w in zip(chip.tolist(), there, way.tolist(), strict=True)
    )


@given(holed())
def test_links_are_those_of_the_graph_each_once(mesh: Mesh) -> None:
    found = [frozenset([mesh.chip(c), mesh.chip(mesh.neighbour[c, w])]) for c, w in mesh.links]
    assert len(set(found)) == len(found)
    assert set(found) == {frozenset(edge) for edge in graph(mesh).edges}


@given(st.integers(1, 20), st.integers(1, 20), st.booleans(), st.booleans())
def test_links_of_an_intact_mesh_follow_the_formula(rows: int, cols: int, x: bool, y: bool) -> None:
    x, y = x and rows > 2, y and cols > 2
    assert len(Mesh(rows, cols, (x, y)).links) == rows * (cols - 1 + y) + cols * (rows - 1 + x)


@given(holed())
def test_components_are_those_of_the_graph_largest_first(mesh: Mesh) -> None:
    parts = [{mesh.chip(i) for i in part} for part in mesh.components]
    expected = list(nx.connected_components(graph(mesh)))
    assert {frozenset(part) for part in parts} == {frozenset(part) for part in expected}
    assert [len(part) for part in parts] == sorted((len(part) for part in expected), reverse=True)
    assert mesh.connected == (len(expected) == 1)


@given(holed())
def test_largest_keeps_the_biggest_component_and_its_links(mesh: Mesh) -> None:
    kept = mesh.largest()
    biggest = mesh.components[0]
    assert kept.connected
    assert np.array_equal(kept.live, biggest)
    assert {frozenset(edge) for edge in graph(kept).edges} == {
        frozenset(edge) for edge in graph(mesh).subgraph([mesh.chip(i) for i in biggest]).edges
    }
    assert (kept == mesh) == mesh.connected


@given(holed())
def test_alive_live_and_intact_agree(mesh: Mesh) -> None:
    assert [mesh.chip(i) for i in mesh.live] == sorted(graph(mesh).nodes)
    assert np.array_equal(np.flatnonzero(mesh.alive), mesh.live)
    assert mesh.size == mesh.rows * mesh.cols == len(mesh.alive)
    assert mesh.intact == (len(mesh.links) == len(Mesh(mesh.rows, mesh.cols, mesh.wrap).links))


@given(holed())
def test_a_chip_and_its_index_name_each_other(mesh: Mesh) -> None:
    chips = list(itertools.product(range(mesh.rows), range(mesh.cols)))
    assert [mesh.index(chip) for chip in chips] == list(range(mesh.size))
    assert [mesh.chip(i) for i in range(mesh.size)] == chips
    assert mesh.chip(np.int32(mesh.size - 1)) == (mesh.rows - 1, mesh.cols - 1)


@given(holed(), st.randoms(use_true_random=False))
def test_the_order_of_failures_does_not_matter(mesh: Mesh, random: Any) -> None:
    failures: list[Any] = [*mesh.dead_chips, *((b, a) for a, b in mesh.dead_links)]
    random.shuffle(failures)
    again = Mesh(mesh.rows, mesh.cols, mesh.wrap)
    for failure in failures:
        again = again.fail(failure)
    assert again == mesh
    assert hash(again) == hash(mesh)
    assert len({again, mesh}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Mesh(2, 3), Mesh.parse("2x3")),
        (Mesh(4, 3, (True, False)), Mesh.parse("4x3 wrap=x")),
        (Mesh(3, 4, (False, True)), Mesh.parse("3x4 wrap=y")),
        (Mesh.parse("4x4 -2x1@0,0"), Mesh.parse("4x4 -chip@1,0 -chip@0,0 -chip@1,0")),
        (Mesh.parse("4x4 -link@0,1:0,0"), Mesh.parse("4x4 -link@0,0:0,1")),
        (Mesh.parse("4x4 wrap=x -link@3,0:0,0"), Mesh.parse("4x4 wrap=x -link@0,0:3,0")),
        (Mesh.parse("4x4 -link@0,0:0,1 -chip@0,0"), Mesh.parse("4x4 -chip@0,0")),
        (Mesh.parse("4x4 -link@0,0:0,1").fail((0, 1)), Mesh.parse("4x4 -chip@0,1")),
        (Mesh.parse("4x4 -chip@0,1").fail(((0, 0), (0, 1))), Mesh.parse("4x4 -chip@0,1")),
    ],
)
def test_equal_meshes_are_one_key(one: Mesh, other: Mesh) -> None:
    assert one == other
    assert hash(one) == hash(other)


def test_different_meshes_differ() -> None:
    texts = ["3x4", "4x3", "3x4 wrap=x", "3x4 wrap=y", "3x4 wrap=xy", "3x4 -chip@0,1", "3x4 -chip@1,0"]
    texts += ["3x4 -link@0,0:0,1", "3x4 -link@0,0:1,0", "3x4 wrap=xy -link@0,0:0,3", "3x4 -chip@0,1 -chip@1,0"]
    assert len({Mesh.parse(text) for text in texts}) == len(texts)


def test_a_mesh_cannot_be_changed() -> None:
    mesh = Mesh.parse("4x4 -chip@1,1 -link@2,2:2,3")
    for name in ("rows", "wrap", "dead_chips"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(mesh, name, getattr(mesh, name))
    for array in (mesh.alive, mesh.live, mesh.neighbour, mesh.links, mesh.components[0]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = array[0]
    before = str(mesh)
    assert mesh.fail((0, 0)) != mesh
    assert str(mesh) == before


def test_a_mesh_survives_pickle() -> None:
    mesh = Mesh.parse("4x4 wrap=y -chip@1,1 -link@2,2:2,3")
    assert mesh.connected  # arrays that were made on demand travel along
    assert pickle.loads(pickle.dumps(mesh)) == mesh


def test_numpy_numbers_become_plain_ones() -> None:
    one = np.int64(1)
    mesh = Mesh(np.int32(4), np.uint8(3), (np.True_, np.False_), {(one, one)}, {((one, one + 1), (one + 1, one + 1))})
    assert mesh == Mesh.parse("4x3 wrap=x -chip@1,1 -link@1,2:2,2")
    assert json.loads(json.dumps([mesh.rows, mesh.cols, *mesh.wrap, *mesh.dead_chips])) == [4, 3, True, False, [1, 1]]
    assert mesh.fail((np.int64(0), np.int64(0))) == mesh.fail((0, 0))


@pytest.mark.parametrize(
    ("holes", "keywords", "expected"),
    [
        (["-2x2@0,0"], {}, "5x6 -2x2@0,0"),
        (["2x2@0,0 chip@4,4", "-link@0,4:0,5"], {}, "5x6 -2x2@0,0 -chip@4,4 -link@0,4:0,5"),
        ([(4, 4)], {}, "5x6 -chip@4,4"),
        ([((0, 5), (0, 4))], {}, "5x6 -link@0,4:0,5"),
        (["-host@0,0", (4, 4), ((0, 4), (0, 5))], {}, "5x6 -4x2@0,0 -chip@4,4 -link@0,4:0,5"),
        ([], {"chips": [(4, 4), (0, 0)]}, "5x6 -chip@0,0 -chip@4,4"),
        ([], {"links": iter([((0, 4), (0, 5))])}, "5x6 -link@0,4:0,5"),
        (["-board@2,2"], {"chips": {(0, 0)}, "links": [((4, 0), (3, 0))]}, "5x6 -2x2@2,2 -chip@0,0 -link@3,0:4,0"),
        ([""], {}, "5x6"),
        ([], {}, "5x6"),
    ],
)
def test_fail_takes_notation_chips_and_links(holes: list[Any], keywords: dict[str, Any], expected: str) -> None:
    assert Mesh(5, 6).fail(*holes, **keywords) == Mesh.parse(expected)


@given(holed(), holed())
def test_failing_adds_to_what_is_dead(mesh: Mesh, other: Mesh) -> None:
    chips = {chip for chip in other.dead_chips if chip[0] < mesh.rows and chip[1] < mesh.cols}
    if len(mesh.dead_chips | chips) == mesh.size:
        with pytest.raises(MeshError, match="at least one must be alive"):
            mesh.fail(chips=chips)
        return
    worse = mesh.fail(chips=chips)
    assert worse.dead_chips == mesh.dead_chips | chips
    assert worse.dead_links <= mesh.dead_links


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Mesh(0, 4), "at least 1 row, not 0"),
        (lambda: Mesh(4, -1), "at least 1 col, not -1"),
        (lambda: Mesh(2.0, 4), "at least 1 row, not 2.0"),  # type: ignore[arg-type]
        (lambda: Mesh("4", 4), "at least 1 row, not '4'"),  # type: ignore[arg-type]
        (lambda: Mesh(True, 4), "at least 1 row, not True"),
        (lambda: Mesh(2, 4, (True, False)), "wrap=x .* at least 3 rows"),
        (lambda: Mesh(4, 1, (False, True)), "wrap=y .* at least 3 cols"),
        (lambda: Mesh(4, 4, dead_chips=frozenset({(4, 0)})), "chip 4,0 is outside the 4x4 mesh: rows go from 0 to 3"),
        (lambda: Mesh(1, 1, dead_chips=frozenset({(0, 0)})), "at least one must be alive"),
        (lambda: Mesh(4, 4).fail((0, -1)), "chip 0,-1 is outside .* cols from 0 to 3"),
        (lambda: Mesh(4, 4).fail(((0, 0), (1, 1))), "link 0,0:1,1 does not exist"),
        (lambda: Mesh(4, 4).fail(((0, 0), (0, 3))), "link 0,0:0,3 does not exist: .*neighbouring"),
        (lambda: Mesh(4, 4).fail("wrap=x"), "'wrap=x'.*a hole is"),
        (lambda: Mesh(4, 4).fail("-chip@9,9"), "'-chip@9,9'.*outside the 4x4 mesh"),
        (lambda: Mesh(4, 4).index((4, 4)), "chip 4,4 is outside"),
        (lambda: Mesh(4, 4).way((0, 0), (0, 2)), "not neighbours in 4x4"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(make: Any, says: str) -> None:
    with pytest.raises(MeshError, match=says):
        make()


def test_a_mesh_too_big_to_hold_is_refused_before_it_is_made() -> None:
    with pytest.raises(MeshError, match="1000000x1000000"):
        Mesh(10**6, 10**6)


def test_falling_apart_names_the_sizes_and_shows_the_map() -> None:
    mesh = Mesh.parse(BARE)
    with pytest.raises(Disconnected) as caught:
        mesh.require_connected()
    message = str(caught.value)
    assert caught.value.sizes == (8, 4)
    assert BARE in message
    assert "2 disconnected components of 8, 4 chips" in message
    assert "largest()" in message
    assert "--largest" in message
    assert message.splitlines()[1:] == ["b x a a"] * 4
    mesh.largest().require_connected()


def test_falling_apart_into_very_many_lists_the_biggest() -> None:
    mesh = Mesh(9, 9).fail(chips=[(r, c) for r in range(9) for c in range(9) if (r + c) % 2])
    with pytest.raises(Disconnected, match="41 disconnected components of 1, 1, 1, 1, 1, 1, 1, 1, … chips") as caught:
        mesh.require_connected()
    assert caught.value.sizes == (1,) * 41


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2x3", "· · ·\n· · ·"),
        ("2x3 -chip@0,1", "· x ·\n· · ·"),
        ("2x3 -link@0,0:0,1", "· ·─·\n│ │ │\n·─·─·"),
        ("3x2 wrap=x -link@0,0:2,0", "·─·\n│ │\n·─·\n│ │\n·─·\n  │"),
        ("1x3 wrap=y -link@0,1:0,2", "·─· ·─"),
    ],
)
def test_the_map_shows_the_hole(text: str, expected: str) -> None:
    assert text_map(Mesh.parse(text)) == expected
