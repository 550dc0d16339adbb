"""Networks that lie on no grid, from their links to sums: bound, trees, proof, schedule, simulation, files."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshmend as mm
from meshmend import Disconnected, Graph, Mesh, MeshError, PlanError, VerifyError
from meshmend.mesh import read_mesh
from meshmend.mesh.collectives import COLLECTIVES
from meshmend.mesh.executors.placement import placed
from meshmend.mesh.files import binary
from meshmend.mesh.planners.cost import seconds
from meshmend.mesh.planners.floor import floor
from meshmend.mesh.planners.trees import trees
from tests.mesh.planners.test_bound import partitions, ratio
from tests.mesh.proof.test_mutants import is_right, mutants, refused
from tests.strategies import SPEEDS, damaged_bytes, numbers

FAT_RING = {(i, (i + far) % 8): 1 if far == 1 else Fraction(1, 2) for i in range(8) for far in (1, 2)}
GRAPHS: dict[str, Any] = {
    "two chips": [(0, 1)],
    "fat ring": FAT_RING,
    "regular": list(nx.random_regular_graph(4, 40, seed=1).edges),
    "dragonfly group": list(nx.complete_graph(12).edges),
    "hypercube": list(nx.convert_node_labels_to_integers(nx.hypercube_graph(5)).edges),
    "two rings and a bridge": [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 5), (5, 3)],
    "star": [(0, i) for i in range(1, 63)],
}


@st.composite
def graphs(draw: st.DrawFn, most: int = 16) -> Graph:
    """Any connected graph of up to so many live chips, with slow links and holes."""
    size, seed = draw(st.integers(2, most)), draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    links = {(int(random.integers(chip)), chip) for chip in range(1, size)}  # a tree, so that it is connected
    links |= {(a, b) for b in range(size) for a in range(b) if random.random() < draw(st.sampled_from([0.1, 0.3, 1.0]))}
    uneven = draw(st.booleans())
    speeds = {link: random.choice([1, 1, *SPEEDS[:2]]) if uneven else 1 for link in sorted(links)}  # type: ignore[arg-type]
    graph = Mesh.from_links(speeds)
    chips = draw(st.sampled_from([0, 0, 1])) if size > 2 else 0
    return graph.fail_random(seed, chips=chips, links=draw(st.sampled_from([0.0, 0.1]))).largest()


def worst_of_all(graph: Graph) -> Iterator[Fraction]:
    for blocks in partitions(graph.live.tolist()):
        part = np.full(graph.size, -1)
        for label, block in enumerate(blocks):
            part[block] = label
        if len(blocks) > 1:
            yield ratio(graph, part)


@given(graphs())
def test_ways_lead_to_neighbours_and_back(graph: Graph) -> None:
    alive = nx.Graph(graph.joined)
    alive.remove_nodes_from([chip for (chip,) in graph.dead_chips])
    alive.remove_edges_from([(a, b) for (a,), (b,) in graph.dead_links])
    for chip in range(graph.size):
        there = [int(other) for other in graph.neighbour[chip] if other >= 0]
        assert there == (sorted(alive[chip]) if chip in alive else [])
        assert graph.index(graph.chip(chip)) == graph.index(chip) == chip  # type: ignore[arg-type]
    links = graph.directed_links
    assert (graph.reverse[graph.reverse[links]] == links).all() and (graph.reverse[links] != links).all()
    assert (graph.neighbour.ravel()[graph.reverse[links]] == graph.link_source(links)[0]).all()
    assert sorted(graph.ends(*link) for link in graph.links.tolist()) == sorted(
        ((min(link),), (max(link),)) for link in alive.edges
    )
    assert len(graph.components) == nx.number_connected_components(alive)


@settings(max_examples=30, deadline=None)
@given(graphs(7))
def test_the_bound_is_the_worst_of_all_partitions(graph: Graph) -> None:
    if len(graph.live) > 1:
        assert mm.bound(graph).fraction == min(worst_of_all(graph))


@settings(max_examples=20, deadline=None)
@given(graphs(12))
def test_a_broadcast_reaches_the_least_cut(graph: Graph) -> None:
    """The least cut between the root and any chip, which networkx finds as a flow."""
    if len(graph.live) == 1 or not graph.even:
        return
    made = mm.plan(graph, collective="broadcast", root=graph.chip(int(graph.live[0])))
    mm.verify(made)
    whole = nx.DiGraph()
    for chip, way in graph.links.tolist():
        ends = chip, int(graph.neighbour[chip, way])
        whole.add_edge(*ends, capacity=1)
        whole.add_edge(*ends[::-1], capacity=1)
    root = int(graph.live[0])
    least = min(nx.maximum_flow_value(whole, root, chip) for chip in graph.live.tolist() if chip != root)
    assert made.bound.fraction == least
    assert made.efficiency == pytest.approx(1)


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_any_graph_is_planned_proved_scheduled_and_summed(graph: Graph) -> None:
    made = mm.plan(graph, algorithm="trees")
    mm.verify(made)
    assert made.efficiency >= 0.99 - 1e-9
    for options in ({}, {"hop": 3}, {"nbytes": 1e6, "link": "tpu-v3"}):
        table = made.schedule(None if "nbytes" in options else len(made) + 3, **options)  # type: ignore[arg-type]
        mm.verify(table)
        parts = numbers(1, len(graph.live), 1000)
        assert (mm.local.allreduce(table, parts) == parts.sum(0)).all()
    assert (mm.local.allreduce(mm.spread_roots(made), parts) == parts.sum(0)).all()
    assert read_mesh(graph.notation) == graph


@settings(max_examples=20, deadline=None)
@given(graphs(10), st.sampled_from([name for name in COLLECTIVES if name != "all_reduce"]))
def test_other_collectives_keep_below_their_bounds(graph: Graph, name: str) -> None:
    made = mm.plan(graph, collective=name)
    mm.verify(made)
    mm.verify(made.schedule())
    assert 0.2 < made.efficiency <= 1 + 1e-9


@pytest.mark.parametrize("name", GRAPHS)
def test_trees_reach_the_bound_and_stay_shallow(name: str) -> None:
    graph = Mesh.from_links(GRAPHS[name])
    made = mm.plan(graph, algorithm="trees")
    mm.verify(made)
    assert 0.99 <= made.efficiency <= 1 + 1e-9
    assert made.depth <= 2 * trees(graph, 1).depth
    least = floor(graph, 64e6).seconds
    flight = mm.simulate(made, 64e6)
    assert least <= flight.seconds <= 1.1 * least
    assert seconds(made, 64e6) == pytest.approx(flight.seconds, rel=0.05)
    assert mm.simulate(made, 64e6, order="first-come").seconds <= 1.25 * flight.seconds


@pytest.mark.parametrize("text", ["4x4", "3x5 -chip@1,1", "4x4 wrap=xy -link@0,0:0,1", "8x8 -2x2@2,2", "2x3x3 wrap=yz",
                                  "6x6 ~0.5@3,3:3,4"])  # fmt: skip
def test_a_grid_given_as_links_is_as_good(text: str) -> None:
    grid = Mesh.parse(text)
    ends = [(int(chip), int(grid.neighbour[chip, way]), way) for chip, way in grid.links.tolist()]
    links = {
        (int(grid.place[a]), int(grid.place[b])): Fraction(int(grid.units[grid.link_number(a, way)]), grid.whole)
        for a, b, way in ends
    }
    graph = Mesh.from_links(links)
    assert mm.bound(graph).fraction == mm.bound(grid).fraction
    assert floor(graph, 1e6).seconds == pytest.approx(floor(grid, 1e6).seconds)
    one, other = (mm.plan(mesh, algorithm="trees") for mesh in (graph, grid))
    assert one.efficiency >= 0.99
    assert one.depth <= 1.5 * other.depth
    for name in ("all_gather", "all_to_all"):
        ratio = mm.plan(graph, collective=name).bound.value / mm.plan(grid, collective=name).bound.value
        assert ratio >= 1 - 1e-9  # on a grid the cuts straight through it are tried too


def test_mutants_of_schedules_are_refused() -> None:
    graph = Mesh.from_links(FAT_RING).fail(3)
    table = mm.plan(graph, algorithm="trees").schedule(60, even=True)
    mm.verify(table)
    killed = 0
    for kind, mutant in mutants(table, np.random.default_rng(1), 60):
        if not is_right(mutant):
            assert refused(mutant), f"a wrong schedule passed: {kind}"
            killed += 1
    assert killed > 100
    with pytest.raises(VerifyError, match=r"from chip \d+ \w to chip \d"):
        late = int(np.argmax(~table.copy))
        mm.verify(mutant_in_slot(table, late))


def mutant_in_slot(table: mm.Schedule, row: int) -> mm.Schedule:
    slot = table.slot.copy()
    slot[row] = table.slots + 5
    order = np.argsort(slot, kind="stable")
    columns = (column[order] for column in (slot, table.link, table.chunk, table.copy))
    return mm.Schedule(table.mesh, table.chunks, table.hop, *columns)


def test_mutants_of_plans_are_refused() -> None:
    made = mm.plan(Mesh.from_links(GRAPHS["regular"]), algorithm="trees")
    random = np.random.default_rng(1)
    for _ in range(100):
        up = made.up.copy()
        flow, chip = int(random.integers(len(made))), int(random.integers(made.mesh.size))
        up[flow, chip] = (up[flow, chip] + 1 + int(random.integers(4))) % 5 - 1  # another way, or none
        mutant = mm.Plan(made.mesh, "trees", made.share, made.root, up, made.down)
        mesh, there = made.mesh, made.mesh.neighbour[np.arange(made.mesh.size), np.maximum(up[flow], 0)]
        tree = nx.Graph((i, int(there[i])) for i in range(mesh.size) if up[flow, i] >= 0)
        right = np.count_nonzero(up[flow] < 0) == 1 and up[flow, made.root[flow]] < 0 and len(tree) == mesh.size
        assert refused(mutant) != (right and nx.is_tree(tree))


def test_a_death_on_the_way_is_simulated() -> None:
    made = mm.plan(Mesh.from_links(FAT_RING), algorithm="trees")
    flight = mm.simulate(made, 1e6, dies={"-chip@3": 1e-6})
    assert flight.seconds == float("inf")
    assert mm.simulate(made, 1e6, dies={"-link@0:1": 1.0}).seconds == mm.simulate(made, 1e6).seconds


@settings(max_examples=20, deadline=None)
@given(graphs(10), st.sampled_from(["file.json", "file.mm"]))
def test_files_keep_every_bit(tmp_path_factory: pytest.TempPathFactory, graph: Graph, name: str) -> None:
    path = str(tmp_path_factory.mktemp("graph") / name)
    made = mm.plan(graph, algorithm="trees")
    things: list[Any] = [graph, made, made.schedule(20), mm.plan(graph, collective="all_gather")]
    for thing in things:
        mm.save(thing, path)
        again: Any = mm.load(path)
        assert type(again) is type(thing)
        assert again == thing if thing is graph else again.digest == thing.digest and again.mesh == graph
    mm.verify(again)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_damaged_file_is_refused_or_right(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    made = mm.plan(Mesh.from_links(GRAPHS["two rings and a bridge"]), algorithm="trees")
    path = tmp_path_factory.mktemp("graph") / f"file{data.draw(st.sampled_from(['.json', '.mm']))}"
    mm.save(made, str(path))
    whole = path.read_bytes()
    assert whole.startswith(binary.MAGIC) == (path.suffix == ".mm")
    path.write_bytes(data.draw(damaged_bytes(whole)))
    try:
        mm.verify(mm.load(str(path)))  # type: ignore[arg-type]
    except (mm.MeshmendError, TypeError) as error:  # a mesh is nothing to verify
        assert "Traceback" not in str(error)


def test_the_notation_is_read_back() -> None:
    graph = Mesh.from_links([(0, 1), (1, 2, 0.75), (2, 3), (3, 0), (0, 2, "1/3")])
    assert str(graph) == graph.notation == "0-1-2-0-3-2 ~1/3@0:2 ~0.75@1:2"
    assert eval(repr(graph)) == graph == read_mesh("3-2-1-0-3 2-0 ~0.75@2:1 ~1/3@0:2")
    assert str(graph.fail(3, (1, 0), "~0.5@1:2")) == "0-1-2-0-3-2 -chip@3 -link@0:1 ~1/3@0:2 ~0.5@1:2"
    assert graph.fail("-chip@3 -link@0:1") == graph.fail(chips=[3], links=[(0, 1)]) == graph.fail((3,), ((0,), (1,)))
    large = Mesh.from_links(GRAPHS["regular"]).fail(7)
    assert str(large) == "graph of 40 chips and 80 links, of which 39 and 76 live"
    assert read_mesh(large.notation) == large and hash(read_mesh(large.notation)) == hash(large)
    with pytest.raises(MeshError, match="is a graph, but a grid is needed"):
        Mesh.parse("0-1-2-0")


def test_a_plan_says_what_it_does() -> None:
    made = mm.plan(Mesh.from_links(FAT_RING).fail(3))
    text = str(made)
    assert f"{made.root[0]} ← " in text and "7 live chips and 12 live links" in text and made._repr_svg_() is None
    assert "links worth 9 full ones, and 6 links in every spanning tree of 7 chips" in text
    assert "each chip adds what comes from those behind the arrow" in text
    assert "← " in str(mm.plan(made.mesh, collective="all_gather"))


def test_pieces_of_a_graph_are_listed() -> None:
    apart = Mesh.from_links([(0, 1), (1, 2), (3, 4)])
    with pytest.raises(
        Disconnected, match=r"2 disconnected components of 3, 2 chips(.|\n)*3 chips: 0 1 2\n2 chips: 3 4"
    ):
        mm.plan(apart)
    assert apart.largest() == apart.fail(3, 4)


@pytest.mark.parametrize("algorithm", ["ring", "rowpair", "rowcol"])
def test_schemes_of_grids_say_so(algorithm: str) -> None:
    with pytest.raises(PlanError, match=f"{algorithm} needs a grid of rows and columns, and 0-1-2-0 is a graph"):
        mm.plan("0-1-2-0", algorithm=algorithm)


def test_what_else_needs_a_grid_says_so(tmp_path: Path) -> None:
    needs = "a grid of rows and columns, and 0-1-2-0 is a graph"
    with pytest.raises(PlanError, match=f"staged=True needs {needs}"):
        mm.plan("0-1-2-0", 1e6, staged=True)
    with pytest.raises(PlanError, match=f"groups of peers need {needs}"):
        mm.plan("0-1-2-0", groups=mm.tile(2, 1))
    with pytest.raises(PlanError, match=f"the XLA executor needs {needs}"):
        placed(Graph.parse("0-1-2-0"), [None] * 3)
    with pytest.raises(PlanError, match=f"a picture needs {needs}"):
        mm.plan("0-1-2-0").draw(str(tmp_path / "plan.svg"))


CROWD = [(0, chip) for chip in range(1, 64)]


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ([(0, 1), (1, 1)], "link 1:1 joins a chip to itself"),
        ([(0, 1), (1, 0)], "link 0:1 is given twice: give it once, and several cables as its speed"),
        ([(0, 1, 0)], "a speed of 0: give a number above 0 and at most 1"),
        ({(0, 1): 2}, "a speed of 2: give a number above 0 and at most 1"),
        ({(0, 1): "fast"}, "a speed of fast: give a number"),
        ({(0, 1): float("nan")}, "a speed of nan: give a number"),
        ({(0, 1): 1 / 3}, "finer than thousandths: round it, for example to 0.333"),
        ([], "there are no links"),
        ([(0, 2)], "no link leads to chip 1: number the chips from 0 to 1 without gaps"),
        ([(0, 10**9)], "no link leads to chip 1"),
        ([(-1, 0)], "link -1:0: chips are numbered from 0"),
        ([(0, True)], r"a link given as \(0, True\): give the numbers of two chips"),
        ([("a", "b")], "give the numbers of two chips"),
        ([(0,)], r"a link given as \(0,\): give two chips, or two chips and a speed"),
        (CROWD, "chip 0 has 63 links, but a chip may have at most 62"),
    ],
)
def test_bad_links_are_refused_in_a_sentence(links: Any, message: str) -> None:
    with pytest.raises(MeshError, match=message) as caught:
        Mesh.from_links(links)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("hole", "message"),
    [
        ("-chip@9", "there is no chip 9: the chips of this graph are numbered 0 to 3"),
        ("-link@0:2", "link 0:2 does not exist: chip 0 is joined to 1, 3"),
        ("-2x2@0,0", "a hole is -chip@CHIP or -link@CHIP:CHIP"),
        ("~0@0:1", "a speed of 0"),
        ("~0.5@x", "a slow link ~SPEED@CHIP:CHIP"),
        (4, "there is no chip 4"),
        ((0, 1, 2), "cannot fail"),
        (None, "cannot fail"),
        (0.5, "cannot fail"),
    ],
)
def test_bad_holes_are_refused_in_a_sentence(hole: Any, message: str) -> None:
    with pytest.raises(MeshError, match=message):
        Graph.parse("0-1-2-3-0").fail(hole)
    with pytest.raises(MeshError, match="at least one must be alive"):
        Graph.parse("0-1-2-3-0").fail(0, 1, 2, 3)
