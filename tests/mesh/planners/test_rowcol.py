"""Rows and columns: right on every intact mesh, evenly loaded, refused with a hole."""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshmend.errors import PlanError
from meshmend.mesh import Mesh
from meshmend.mesh.grid import Chip
from meshmend.mesh.planners.plan import Plan, Ways
from meshmend.mesh.planners.rowcol import rowcol

STEP = ((-1, 0), (0, 1), (1, 0), (0, -1))


def walk(mesh: Mesh, tree: Ways, root: Chip) -> None:
    """Follow every live chip's pointers to the root, link by link, without the planner's own tables."""
    done = {root}
    for start in mesh.live:
        chip, path = mesh.chip(start), []
        while chip not in done:
            path.append(chip)
            assert len(path) <= mesh.size, f"{mesh}: {start} goes round in a circle"
            way = int(tree[mesh.index(chip)])
            assert way >= 0, f"{mesh}: {chip} has no parent and is not the root {root}"
            r, c = chip[0] + STEP[way][0], chip[1] + STEP[way][1]
            there = (r % mesh.rows if mesh.wrap[0] else r, c % mesh.cols if mesh.wrap[1] else c)
            assert 0 <= there[0] < mesh.rows and 0 <= there[1] < mesh.cols, f"{mesh}: {chip} points off the rim"
            chip = there
        done.update(path)
    assert tree[mesh.index(root)] == -1


def check(plan: Plan, most: int = 200) -> None:
    assert plan.share.sum() == pytest.approx(1) and (plan.share > 0).all()
    flows = plan.flows
    for flow in flows[:: max(1, len(flows) // most)]:
        walk(plan.mesh, flow.up, flow.root)
        walk(plan.mesh, flow.down, flow.root)


MESHES = [
    # mesh, flows, least and most algbw
    ("1x1", 1, np.inf, np.inf),
    ("1x8", 8, 8 / 14, 8 / 14),
    ("8x1 wrap=x", 8, 1.0, 8 / 7),
    ("2x2", 8, 4 / 3, 4 / 3),
    ("4x4", 32, 16 / 15, 16 / 15),
    ("5x4", 40, 1.0, 1.0),
    ("3x5 wrap=xy", 30, 1.6, 2.2),
    ("8x8 wrap=xy", 128, 2.0, 2.1),
    ("15x32", 960, 0.9, 1.0),
    ("16x32", 1024, 0.9, 1.0),
    ("32x32", 2048, 0.9, 1.01),
    ("128x32", 2560, 0.9, 1.0),
    ("128x32 wrap=y", 2560, 0.9, 1.0),
]


@pytest.mark.parametrize(("text", "flows", "least", "most"), MESHES, ids=[m[0] for m in MESHES])
def test_intact(text: str, flows: int, least: float, most: float) -> None:
    plan = rowcol(Mesh.parse(text))
    check(plan, 40)
    assert len(plan) == flows
    assert least * (1 - 1e-9) <= plan.algbw <= most * (1 + 1e-9)
    assert plan.algorithm == "rowcol" and not plan.overlap


def test_half_the_payload_goes_rows_first() -> None:
    plan = rowcol(Mesh.parse("16x32"))
    first = plan.share[:512]
    assert first.sum() == pytest.approx(0.5)
    assert sorted(plan.root[:512]) == sorted(plan.root[512:]) == list(range(512))
    flow = plan.flows[5]
    assert np.isin(np.delete(flow.up.reshape(16, 32), flow.root[1], 1), (1, 3)).all()


def test_both_ways_round_a_ring_carry_the_same() -> None:
    load = rowcol(Mesh.parse("8x8 wrap=xy")).up_load
    assert load.max() / load.min() < 1.1


def test_fewer_roots_change_little(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = Mesh.parse("40x32")
    few = rowcol(mesh)
    monkeypatch.setattr(sys.modules["meshmend.mesh.planners.rowcol"], "MANY_CHIPS", mesh.size)
    every = rowcol(mesh)
    assert len(few) < len(every) == 2 * mesh.size
    assert few.algbw == pytest.approx(every.algbw, rel=0.01)


@pytest.mark.parametrize("hole", ["-4x2@6,12", "-link@3,4:3,5"])
def test_a_hole_is_refused_in_a_sentence(hole: str) -> None:
    with pytest.raises(PlanError, match=r"^rowcol needs an intact mesh.*use rowpair, trees or ring instead$"):
        rowcol(Mesh.parse(f"16x32 {hole}"))


def test_a_multipod_takes_no_time() -> None:
    start = time.process_time()
    rowcol(Mesh.parse("128x32 wrap=y"))
    assert time.process_time() - start < 2


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.booleans(), st.booleans())
def test_any_intact_mesh(rows: int, cols: int, x: bool, y: bool) -> None:
    check(rowcol(Mesh(rows, cols, (x and rows > 2, y and cols > 2))), 20)
