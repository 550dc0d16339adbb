"""What print(plan) shows: a map whose arrows lead to the root, and figures that are those of the plan."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from meshmend import Mesh, Plan, plan
from meshmend.base.units import plural
from meshmend.mesh.drawing.text import TALL
from tests.strategies import meshes

ARROWS = {"↑": (-1, 0), "→": (0, 1), "↓": (1, 0), "←": (0, -1)}


def shown(made: Plan) -> tuple[list[list[str]], str, dict[str, str]]:
    """The map as a grid of characters, the caption, and the figures by name."""
    top, bottom = str(made).split("\n\n")
    *rows, caption = top.splitlines()
    figures = dict(line.split(maxsplit=1) for line in bottom.splitlines())
    return [row.split(" ") for row in rows], caption, figures


@settings(max_examples=60)
@given(meshes(9))
def test_every_arrow_leads_to_the_one_root(mesh: Mesh) -> None:
    made = plan(mesh, algorithm="trees")
    grid, _, _ = shown(made)
    assert [len(row) for row in grid] == [mesh.cols] * mesh.rows
    place = {(r, c): sign for r, row in enumerate(grid) for c, sign in enumerate(row)}
    assert {chip for chip, sign in place.items() if sign == "x"} == mesh.dead_chips
    assert [chip for chip, sign in place.items() if sign == "*"] == [made.flows[0].root]
    for chip in place.keys() - mesh.dead_chips:
        for _ in range(mesh.size):
            if place[chip] == "*":
                break
            dr, dc = ARROWS[place[chip]]
            chip = ((chip[0] + dr) % mesh.rows, (chip[1] + dc) % mesh.cols)
        assert place[chip] == "*"


@pytest.mark.parametrize(
    ("text", "algorithm"),
    [("6x6 -2x2@2,2", "auto"), ("4x4", "rowcol"), ("4x6", "ring"), ("5x5 -chip@0,1", "trees"), ("1x1", "trees")],
)
def test_the_figures_are_those_of_the_plan(text: str, algorithm: str) -> None:
    made = plan(text, algorithm=algorithm)
    _, caption, figures = shown(made)
    assert f"flow 0 (of 0 to {len(made) - 1})" in caption
    size = f"{plural(len(made.mesh.live), 'live chip')} and {plural(len(made.mesh.links), 'live link')}"
    assert figures["mesh"] == f"{text}, {size}"
    assert figures["plan"].startswith(f"{made.algorithm}, {plural(len(made), 'flow')}, ")
    assert f"depth {made.depth}, {made.hops} hops" in figures["plan"]
    assert ("all reducing ends before broadcasting begins" in figures["plan"]) == (algorithm in ("rowcol", "rowpair"))
    speed = re.fullmatch(r"(\S+) B of at most (\S+) B \((\S+) %\)", figures["speed"])
    assert speed
    expected = [made.algbw, made.bound.value, 100 * made.algbw / made.bound.value if len(made.mesh.live) > 1 else 100]
    assert [float(number) for number in speed.groups()] == pytest.approx(expected, abs=0.06, rel=0.001)
    assert figures["bound"] == made.bound.reason
    assert figures["why"] == made.why
    assert f"{made.max_load:.3f}" in figures["load"]


def test_speed_is_exact_to_three_digits() -> None:
    _, _, figures = shown(plan("16x32", algorithm="trees"))
    assert figures["speed"] == "1.910 B of at most 1.910 B (100.0 %)"


def test_one_of_each_is_singular() -> None:
    _, _, figures = shown(plan("1x2", algorithm="trees"))
    assert figures["mesh"] == "1x2, 2 live chips and 1 live link"
    assert figures["roots"].startswith("1 chip of 2; the busiest holds 100 % of the sums")
    assert "1 hop\n" in str(plan("1x2", collective="broadcast"))


def test_no_reason_no_line() -> None:
    assert "why" not in shown(replace(plan("3x3"), why=""))[2]


@pytest.mark.parametrize("rows", [TALL - 1, TALL, TALL + 1, TALL + 57])
def test_a_tall_mesh_is_shortened_in_the_middle(rows: int) -> None:
    made = plan(Mesh(rows, 3).fail((0, 0), (rows - 1, 2)), algorithm="trees")
    lines = str(made).splitlines()
    caption = next(i for i, line in enumerate(lines) if line.startswith("flow "))
    if rows <= TALL:
        assert caption == rows
        return
    assert caption == TALL + 1
    assert lines[TALL // 2] == f"… {rows - TALL} more rows …"
    assert lines[0].startswith("x ")
    assert lines[TALL].endswith(" x")


@settings(max_examples=60)
@given(meshes(6))
def test_a_dangling_chip_is_said_to_cap_the_plan(mesh: Mesh) -> None:
    dangling = np.flatnonzero((mesh.neighbour >= 0).sum(1) == 1)
    _, _, figures = shown(plan(mesh, algorithm="trees"))
    row, col = mesh.chip(dangling[0]) if len(dangling) else (-1, -1)
    named = figures["bound"].startswith(f"chip {row},{col} ") and "one live link" in figures["bound"]
    assert named == ("caps every plan at 1.0 B" in figures["bound"]) == bool(len(dangling))
    if len(dangling):
        assert figures["speed"] == "1.000 B of at most 1.000 B (100.0 %)"
        assert (f"{len(dangling) - 1} more" in figures["bound"]) == (len(dangling) > 1)
