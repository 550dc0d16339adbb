"""The picture of a plan: valid, deterministic, complete and honest about the load."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import meshmend as mm
from meshmend.errors import PlanError
from meshmend.mesh import Mesh
from meshmend.mesh.drawing.svg import LEVELS, LOAD, TOOLTIPS, draw
from meshmend.mesh.planners.plan import Plan, make_plan, ways

MESHES = [
    "1x1",
    "1x2",
    "2x1",
    "1x40",
    "4x4",
    "5x3 wrap=x -chip@4,2",
    "8x8 wrap=xy -link@3,4:3,5 -link@0,2:7,2",
    "4x32 -board@0,6",
]


def tree(mesh: Mesh, root: int, order: str = "NESW") -> list[int]:
    """Parents of a breadth-first tree; the order of the ways decides between equals."""
    parent, queue = [-1] * mesh.size, [root]
    for chip in queue:
        for way in map("NESW".index, order):
            there = int(mesh.neighbour[chip, way])
            if there >= 0 and there != root and parent[there] < 0:
                parent[there] = chip
                queue.append(there)
    return parent


def sample(text: str, *, flows: int = 2, twisted: bool = False, algorithm: str = "trees") -> Plan:
    """A plan of breadth-first trees with a bound that costs nothing; `twisted` has down trees of their own."""
    mesh = Mesh.parse(text)
    roots = [int(mesh.live[i * len(mesh.live) // flows]) for i in range(flows)]
    up = ways(mesh, [tree(mesh, root) for root in roots])
    down = ways(mesh, [tree(mesh, root, "WSEN") for root in roots]) if twisted else None
    bound: Any = SimpleNamespace(mesh=mesh, value=2.0, reason="a stub")
    return replace(make_plan(mesh, algorithm, np.ones(flows), up, down), _bound=bound)


def parts(svg: str) -> dict[str, str]:
    """Path data by the name of the part."""
    return {e.attrib["class"]: e.attrib["d"] for e in ET.fromstring(svg).iter() if "class" in e.attrib}


def words(svg: str) -> str:
    return " ".join("".join(e.itertext()) for e in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"))


@pytest.mark.parametrize("text", MESHES)
@pytest.mark.parametrize("twisted", [False, True])
def test_is_valid_complete_and_deterministic(text: str, twisted: bool) -> None:
    svg = sample(text, twisted=twisted).draw(flow=1)
    assert svg == sample(text, twisted=twisted).draw(flow=1)
    assert ET.fromstring(svg).tag.endswith("svg")
    assert not re.search(r"\d\.\d{3}", svg)
    assert "nan" not in svg and "e-" not in re.sub(r"[a-z]+e-[a-z]+", "", svg)
    mesh, part = Mesh.parse(text), parts(svg)
    assert part["mm-chips"].count("z") == len(mesh.live)
    assert part.get("mm-up-heads", "").count("z") == len(mesh.live) - 1
    assert part.get("mm-dead-chips", "").count("z") == len(mesh.dead_chips)
    lines = sum(d.count("M") for name, d in part.items() if name.startswith("mm-load-"))
    across = mesh.wrap[0] * mesh.cols + mesh.wrap[1] * mesh.rows
    if mesh.intact:
        assert lines == 2 * (len(mesh.links) + across)
    assert lines >= 2 * len(mesh.links)


def test_its_size_is_in_numbers_alone() -> None:
    """Strict readers take `height:auto` for no height, and show nothing."""
    root = ET.fromstring(draw(mm.plan("4x4")))
    assert root.attrib["width"].isdigit() and root.attrib["height"].isdigit()
    assert "height" not in root.attrib["style"] and "auto" not in root.attrib["style"]


def test_one_element_a_line() -> None:
    for line in sample("4x4 wrap=x -chip@0,0").draw().splitlines():
        assert len(re.findall(r"<[a-z]", line.replace("<tspan", "").replace("<title>chip", ""))) <= 1


def test_dead_links_are_crossed_at_both_rims_when_they_wrap() -> None:
    inner, rim = sample("8x8 wrap=x -link@3,4:3,5"), sample("8x8 wrap=x -link@0,2:7,2")
    assert parts(inner.draw())["mm-dead-links"].count("M") == 2
    assert parts(rim.draw())["mm-dead-links"].count("M") == 4


def test_down_tree_is_drawn_only_where_it_differs() -> None:
    same, other = sample("4x4").draw(), sample("4x4", twisted=True).draw()
    assert "mm-down" not in parts(same) and "the same tree back" in words(same)
    assert parts(other)["mm-down-heads"].count("z") == 15 and "another tree" in words(other)
    assert "stroke-dasharray" in other and 'stroke-dasharray="none"' not in other


def test_load_colours_are_relative_to_the_max_load() -> None:
    # A row of three chips rooted at an end: each link carries all of the payload once in each direction.
    mesh = Mesh.parse("1x3")
    even = parts(draw(replace(make_plan(mesh, "row", [1], [[1, 1, -1]]), _bound=sample("1x3")._bound)))
    assert [name for name in even if name.startswith("mm-load")] == [f"mm-load-{LEVELS}"]
    # With separate down trees of half the share each, loads differ and the top level stays the max.
    plan = sample("4x4", flows=3, twisted=True)
    svg = plan.draw()
    load = plan.load[plan.mesh.neighbour.ravel() >= 0]
    level = np.ceil(load / plan.max_load * LEVELS - 1e-9).astype(int)
    part = parts(svg)
    for number in range(LEVELS + 1):
        assert part.get(f"mm-load-{number}", "").count("M") == int((level == number).sum())
    assert f'stroke="{LOAD[-1]}"' in svg and str(round(plan.max_load, 2)) in words(svg)


def test_ramp_falls_in_lightness() -> None:
    channels = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in LOAD[1:]]
    light = [0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in channels]
    assert all(a > b + 5 for a, b in pairwise(light))


def test_figures_are_in_the_caption() -> None:
    plan = sample("6x6 -2x2@2,2", flows=4)
    text = words(plan.draw(flow=2))
    assert f"{plan.algbw:.2f} B" in text and "2.00 B" in text and f"{100 * plan.efficiency:.1f} %" in text
    for figure, name in ((4, "flows"), (plan.depth, "depth"), (plan.hops, "hops")):
        assert f"{figure} {name}" in text
    assert "flow 2 (of 0 to 3)" in text and "share 25 %" in text and "dead chips: 4" in text
    assert "reducing" in words(draw(replace(plan, overlap=False))) and "reducing" not in text


def test_escapes_and_shortens() -> None:
    svg = sample("4x4", algorithm="<b> & co").draw()
    assert "<b> & co" in words(svg)
    mesh = Mesh.parse("16x16").fail_random(1, chips=40).largest()
    plan = sample(str(mesh), algorithm="a name that goes on & on without any end in sight")
    root = ET.fromstring(plan.draw())
    title = next("".join(e.itertext()) for e in root.iter() if e.attrib.get("font-size") == "17")
    assert " … · a name" in title and title.endswith("…")
    assert len(title) * 0.6 * 17 <= float(root.attrib["width"]) - 48
    assert str(mesh) in "".join(root[0].itertext())


def test_tooltips_only_up_to_a_size() -> None:
    small = sample("32x32 -chip@1,1").draw()
    assert small.count("<title>chip ") == TOOLTIPS and "<title>chip 1,1: dead</title>" in small
    assert "<title>chip " not in sample("25x41").draw()


def test_big_meshes_stay_small() -> None:
    for twisted in (False, True):
        assert len(sample("128x32 wrap=xy", twisted=twisted).draw().encode()) < 1_500_000


def test_everything_lies_on_the_page() -> None:
    for text in MESHES:
        root = ET.fromstring(sample(text).draw())
        width, height = float(root.attrib["width"]), float(root.attrib["height"])
        group = next(e for e in root if e.tag.endswith("}g"))
        left, top = map(float, re.findall(r"[\d.]+", group.attrib["transform"]))
        for element in group:
            for x, y in re.findall(r"M(-?[\d.]+) (-?[\d.]+)", element.attrib.get("d", "")):
                assert 0 < left + float(x) < width and 42 < top + float(y) < height


def test_writes_the_same_text_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.SVG"
    svg = sample("3x3").draw(str(path))
    assert path.read_bytes() == svg.encode() and svg == sample("3x3")._repr_svg_()


@pytest.mark.parametrize("flow", [-1, 2, 7, 0.5, "0", None])
def test_refuses_a_flow_that_is_not_there(flow: Any) -> None:
    with pytest.raises(PlanError, match=re.escape(f"flow={flow!r}") + ".* 0 to 1$"):
        sample("3x3").draw(flow=flow)


@pytest.mark.parametrize(
    ("name", "message"), [("plan.png", "ends in .svg"), ("no/plan.svg", "a folder that exists"), ("dir.svg", "folder")]
)
def test_refuses_a_path_it_cannot_write(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "dir.svg").mkdir()
    with pytest.raises(PlanError, match=message) as caught:
        sample("3x3").draw(str(tmp_path / name))
    assert name in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dir.svg"]


def test_accepts_numpy_flow_numbers() -> None:
    plan = sample("3x3")
    assert plan.draw(flow=np.int64(1)) == plan.draw(flow=1)  # type: ignore[arg-type]
