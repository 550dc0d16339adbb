"""Row pairs: right around every hole that leaves a whole pair, about 1.0 B unless the hole lies at the rim."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshmend.errors import Disconnected, PlanError
from meshmend.mesh import Mesh
from meshmend.mesh.grid import Chip
from meshmend.mesh.planners.plan import Plan, Ways
from meshmend.mesh.planners.rowpair import rowpair

STEP = ((-1, 0), (0, 1), (1, 0), (0, -1))


def walk(mesh: Mesh, tree: Ways, root: Chip) -> None:
    """Follow every live chip's pointers to the root over live links, without the planner's own tables."""
    done = {root}
    for start in mesh.live:
        chip, path = mesh.chip(start), []
        while chip not in done:
            path.append(chip)
            assert len(path) <= mesh.size, f"{mesh}: {start} goes round in a circle"
            way = int(tree[mesh.index(chip)])
            assert way >= 0, f"{mesh}: {chip} has no parent and is not the root {root}"
            r, c = chip[0] + STEP[way][0], chip[1] + STEP[way][1]
            there = (r, c % mesh.cols if mesh.wrap[1] else c)
            assert 0 <= r < mesh.rows and 0 <= there[1] < mesh.cols, f"{mesh}: {chip} points off the rim"
            assert there not in mesh.dead_chips, f"{mesh}: {chip} points at the dead chip {there}"
            assert (min(chip, there), max(chip, there)) not in mesh.dead_links, f"{mesh}: {chip} uses a dead link"
            chip = there
        done.update(path)
    assert tree[mesh.index(root)] == -1
    assert all(tree[mesh.index(chip)] == -1 for chip in mesh.dead_chips)


def check(plan: Plan, most: int) -> None:
    assert plan.share.sum() == pytest.approx(1) and (plan.share > 0).all()
    for flow in np.unique(np.linspace(0, len(plan) - 1, most).astype(int)):
        root = plan.mesh.chip(plan.root[flow])
        walk(plan.mesh, plan.up[flow], root)
        walk(plan.mesh, plan.down[flow], root)


MESHES = [
    # mesh, flows, least algbw: hand-over from the rim has one side only, so that its links carry all shares
    ("2x2", 8, 1.0),
    ("4x4", 32, 0.88),
    ("5x4", 32, 0.5),
    ("15x32", 896, 0.5),
    ("16x32", 1024, 0.97),
    ("32x32", 2048, 0.97),
    ("16x32 -4x2@6,12", 768, 0.97),
    ("16x32 -2x2@6,12", 896, 0.97),
    ("32x32 -4x2@14,15", 1792, 0.97),
    ("16x32 -4x2@7,12", 640, 0.97),
    ("16x32 -4x2@0,0", 768, 0.5),
    ("16x32 -4x2@12,30", 768, 0.5),
    ("16x32 -4x2@6,0", 768, 0.97),
    ("16x32 -4x2@6,29", 768, 0.95),
    ("16x32 -4x2@4,4 -4x2@10,20", 512, 0.97),
    ("16x32 -4x2@6,4 -4x2@6,20", 768, 0.97),
    ("16x32 -4x16@6,8", 768, 0.95),
    ("16x32 -1x1@5,7", 896, 0.97),
    ("16x32 -link@6,4:6,5", 896, 0.97),
    ("16x32 -link@6,4:7,4", 896, 0.97),
    ("16x32 -link@5,4:6,4", 1024, 0.97),
    ("8x8 -1x5@2,0 -1x5@5,3", 64, 0.5),
    ("8x6 -2x1@2,1 -1x1@3,3 -1x1@5,3", 48, 0.5),
    ("8x8 wrap=y -1x7@2,0 -1x7@5,1", 64, 0.5),
    ("128x32", 2048, 0.96),
    ("128x32 wrap=y", 2048, 0.96),
    ("128x32 wrap=y -4x2@60,10", 2048, 0.96),
]


@pytest.mark.parametrize(("text", "flows", "least"), MESHES, ids=[m[0] for m in MESHES])
def test_right_and_quick_enough(text: str, flows: int, least: float) -> None:
    plan = rowpair(Mesh.parse(text))
    check(plan, 40)
    assert len(plan) == flows
    assert plan.algbw >= least - 1e-9
    assert plan.algorithm == "rowpair" and not plan.overlap


def test_the_ring_is_opened_behind_the_exit() -> None:
    plan = rowpair(Mesh.parse("4x5"))
    [flow] = [f for f in range(len(plan)) if plan.root[f] == 2 and plan.up[f, 3] == 1]
    letters = ["".join("NESW*"[way] for way in row) for row in plan.up[flow].reshape(4, 5)]
    assert letters == ["EE*ES", "NWNWW", "EENES", "NWNWW"]


def test_a_block_is_handed_over_up_and_down() -> None:
    plan = rowpair(Mesh.parse("16x32 -4x2@6,12"))
    for row in (6, 9):
        loads = plan.up_load.reshape(16, 32, 4)[row, [0, 5, 20, 31]]
        assert np.allclose(loads[:, [0, 2]], 0.5, atol=0.02) and not loads[:, [1, 3]].any()


def test_a_block_at_the_rim_has_one_side() -> None:
    loads = rowpair(Mesh.parse("16x32 -4x2@0,4")).up_load.reshape(16, 32, 4)
    assert not loads[:4, :, 0].any() and loads[3, 20, 2] == pytest.approx(1)


def test_a_hole_costs_no_more_hops() -> None:
    assert rowpair(Mesh.parse("16x32 -4x2@6,12")).hops == rowpair(Mesh.parse("16x32")).hops


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1x8", r"^rowpair needs at least 2 rows and 2 columns, and 1x8 has .*: use ring or trees instead$"),
        ("8x1", r"^rowpair needs at least 2 rows and 2 columns, .*: use ring or trees instead$"),
        ("4x4 -1x1@1,1 -1x1@2,2", r"^rowpair needs a pair of rows without .* has none: use trees or ring instead$"),
        ("8x4 wrap=x -1x4@2,0", r"rows 1 and 4 of .* are not joined .*: use trees or ring instead$"),
        ("8x4 wrap=x -1x4@1,0", r"chip \(0, 0\) of .* cannot reach a pair .*: use trees or ring instead$"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        rowpair(Mesh.parse(text))


def test_a_mesh_in_two_parts_is_refused() -> None:
    with pytest.raises(Disconnected):
        rowpair(Mesh.parse("8x4 -1x4@3,0"))


@pytest.mark.parametrize(("text", "seconds"), [("16x32 -4x2@6,12", 1), ("128x32 -4x2@60,10", 3)])
def test_takes_little_time(text: str, seconds: float) -> None:
    mesh = Mesh.parse(text)
    start = time.process_time()
    rowpair(mesh)
    assert time.process_time() - start < seconds


@st.composite
def broken_meshes(draw: st.DrawFn) -> Mesh:
    rows, cols = draw(st.integers(2, 12)), draw(st.integers(2, 12))
    wrap = draw(st.booleans()) and rows > 2, draw(st.booleans()) and cols > 2
    mesh = Mesh(rows, cols, wrap)
    for _ in range(draw(st.integers(0, 3))):
        top, left = draw(st.integers(0, rows - 1)), draw(st.integers(0, cols - 1))
        bottom, right = draw(st.integers(top, min(rows - 1, top + 3))), draw(st.integers(left, min(cols - 1, left + 3)))
        hole = {(r, c) for r in range(top, bottom + 1) for c in range(left, right + 1)}
        if len(mesh.dead_chips | hole) < mesh.size:
            mesh = mesh.fail(chips=hole)
    links = draw(st.lists(st.sampled_from(mesh.links.tolist()), max_size=4)) if len(mesh.links) else []
    return mesh.fail(links=[(mesh.chip(c), mesh.chip(mesh.neighbour[c, way])) for c, way in links])


@settings(max_examples=300, deadline=None)
@given(broken_meshes())
def test_any_hole_gives_a_right_plan_or_a_sentence(mesh: Mesh) -> None:
    try:
        plan = rowpair(mesh)
    except (PlanError, Disconnected) as error:
        assert "rowpair" in str(error) or not mesh.connected
        return
    check(plan, 20)
    # Whatever the hole, a chip sends every share once up and gets it once down: no link carries more than 2 in all.
    assert plan.algbw >= 0.5 - 1e-9
