"""A plan as one self-contained SVG: the hole, the load of every link, and one flow as arrows.

    ┌──┐ ◄─── ┌──┐        chips are squares, dead ones hollow and crossed out;
    │  │ ═══► │  │        a link is two lines, one per direction (keep right), coloured by load over the max load;
    └──┘ ───► └──┘        the chosen flow's arrows run between the two lines, from chip to parent.

The layers of a mesh of three dimensions lie side by side, each under its number, and the links between them are short
slanting stubs; a small isometric view shows the whole.

The same plan gives the same bytes: one element per line, numbers with at most two decimals. Links are grouped into one
`<path>` per load level, so that 4096 chips stay near a megabyte. Notebooks put many pictures on one page, where ids
and style sheets of one would leak into the next: there are none, and `mm-` classes only name the parts.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt

from meshmend.base.theme import CHIP, DEAD_CHIP, DEAD_LINK, DOWN, IDLE, INK, LOAD, MUTED, PAPER, UP
from meshmend.errors import PlanError
from meshmend.mesh import Mesh, on_grid
from meshmend.mesh.collectives.plan import CollectivePlan
from meshmend.mesh.drawing.isometric import isometric
from meshmend.mesh.drawing.marks import cross as _cross
from meshmend.mesh.drawing.marks import group as _group
from meshmend.mesh.drawing.marks import num as _num
from meshmend.mesh.drawing.marks import path as _path
from meshmend.mesh.drawing.marks import square as _square
from meshmend.mesh.drawing.marks import tag as _tag
from meshmend.mesh.drawing.marks import text as _text
from meshmend.mesh.planners.plan import Plan, Ways, depths

TOOLTIPS = 1024
"""Meshes with more chips than this carry no tooltips, which would be most of the file."""
LEVELS = len(LOAD) - 1
PANEL, GAP, MARGIN = 252, 32, 24
HALF, LANE, STUB = 0.29, 0.15, 0.64
"""In cells, from a chip's middle: its edge, the line of a link's direction, the outer end of a wrap link's stub."""

ON_PAGE = ((-1.0, 0.0), (0.0, 1.0), (1.0, 0.0), (0.0, -1.0), (-0.72, -0.72), (0.72, 0.72))
"""Where each way leads on the page, down and to the right, in cells."""
BETWEEN = 1
"""Cells between two layers."""

Block = tuple[int, list[str]]
"""A part of the panel: its height and its elements."""


class _Grid(NamedTuple):
    """Where chips lie on the page."""

    mesh: Mesh
    cell: int

    @property
    def across(self) -> int:
        """Layers that lie side by side, so that all together are about as wide as high."""
        mesh = self.mesh
        side = math.sqrt(mesh.layers * (mesh.rows + BETWEEN) / (mesh.cols + BETWEEN))
        return min(mesh.layers, max(1, round(side)))

    @property
    def sides(self) -> tuple[int, int]:
        """Rows and columns of cells on the page."""
        mesh, down = self.mesh, -(-self.mesh.layers // self.across)
        return down * (mesh.rows + BETWEEN) - BETWEEN, self.across * (mesh.cols + BETWEEN) - BETWEEN

    def cell_of(self, chip: int) -> tuple[int, int]:
        """The row and column of cells in which a chip lies on the page."""
        row, col, layer = (*self.mesh.chip(chip), 0)[:3]
        down, across = divmod(layer, self.across)
        return row + down * (self.mesh.rows + BETWEEN), col + across * (self.mesh.cols + BETWEEN)

    def at(self, chip: int, along: float = 0, way: int = 0, right: float = 0) -> tuple[float, float]:
        """The point so many cells from a chip's middle: along a way, and to the right of it."""
        row, col = self.cell_of(chip)
        dr, dc = ON_PAGE[way]
        x = (col + 0.5 + along * dc - right * dr) * self.cell
        return x, (row + 0.5 + along * dr + right * dc) * self.cell

    def line(self, chip: int, way: int, edge: float = 0, right: float = 0) -> str:
        """A link as path data: one line, or two stubs where it crosses the rim."""
        there, (dr, dc) = int(self.mesh.neighbour[chip, way]), ON_PAGE[way]
        pieces = [(chip, edge, 1 - edge)]
        if way >= 4 or there - chip != dr * self.mesh.cols + dc:
            pieces = [(chip, edge, STUB), (there, -STUB, -edge)]
        data = ""
        for here, start, end in pieces:
            x, y = self.at(here, start, way, right)
            length = (end - start) * self.cell
            slanting = f"l{_num(length * dc)} {_num(length * dr)}"
            data += f"M{_num(x)} {_num(y)}"
            data += slanting if way >= 4 else f"{'vh'[way % 2]}{_num(length * (dr + dc))}"
        return data


Drawn = Plan | CollectivePlan


def draw(plan: Drawn, path: str | None = None, *, flow: int = 0) -> str:
    """The plan as SVG text, also written to `path`; `flow` chooses the tree shown as arrows."""
    if flow not in range(len(plan)):
        raise PlanError(f"flow={flow!r}: expected the number of a flow of this plan, 0 to {len(plan) - 1}")
    if path is None:
        return "\n".join(_elements(plan, int(flow)))
    where = f"cannot draw to {str(path)!r}"
    if not str(path).lower().endswith(".svg"):
        raise PlanError(f"{where}: the picture is SVG, so give a path that ends in .svg")
    svg = draw(plan, flow=flow)
    try:
        Path(path).write_text(svg, encoding="utf-8", newline="\n")
    except OSError as error:
        raise PlanError(
            f"{where} ({error.strerror}): give a path in a folder that exists and can be written"
        ) from error
    return svg


def _elements(plan: Drawn, flow: int) -> Iterator[str]:
    mesh = on_grid(plan.mesh, "a picture needs", "print the plan instead")
    high, wide = _Grid(mesh, 1).sides
    cell = min(64, max(12, 900 // max(high, wide)))
    stub_y, stub_x = (cell // 4 * wrapped for wrapped in mesh.wrap[:2])
    left, top = MARGIN + 22 + stub_x, 84 + stub_y
    right, bottom = left + wide * cell + stub_x, top + high * cell + stub_y
    whole = isometric(mesh, PANEL)
    blocks = [b for b in (_figures(plan), whole, _load_key(plan), _flow_key(plan, flow), _hole_key(mesh)) if b[1]]
    # A flat mesh would leave a tall blank next to it: its panel goes underneath.
    if wide * cell >= max(600, 3 * high * cell):
        places = [(MARGIN + i * (PANEL + GAP), bottom + GAP) for i in range(len(blocks))]
    else:
        places = [(right + GAP, 70 + sum(b[0] + GAP for b in blocks[:i])) for i in range(len(blocks))]
        top += max(0, places[-1][1] + blocks[-1][0] - bottom) // 2
    width = max(right, places[-1][0] + PANEL) + MARGIN
    height = max([bottom] + [y + block[0] for (_, y), block in zip(places, blocks, strict=True)]) + MARGIN
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'style="max-width:100%" role="img" fill="none" font-size="12" font-family="system-ui, sans-serif">'
    )
    yield f"<title>{escape(f'{mesh}, {plan.algorithm}')}</title>"
    yield f"<desc>Links coloured by load over {_num(plan.max_load)} of the payload; arrows show flow {flow}.</desc>"
    yield _tag("rect", width=width, height=height, rx=10, fill=PAPER)
    # Monospace letters are 0.6 of the font size wide in every font, so that the room can be counted.
    algorithm = textwrap.shorten(plan.algorithm, 24, placeholder="…")
    room = int((width - 2 * MARGIN) / (0.61 * 17)) - len(algorithm) - 3
    notation = textwrap.shorten(str(mesh), room, placeholder=" …")
    rest = _tag("tspan", f" · {escape(algorithm)}", fill=MUTED, font_weight=400)
    font = {"font_size": "17", "font_weight": "600", "font_family": "ui-monospace, Menlo, DejaVu Sans Mono, monospace"}
    yield _tag("text", escape(notation) + rest, x=MARGIN, y=42, fill=INK, **font)
    grid = _Grid(mesh, cell)
    yield _group(left, top, [*_labels(grid), *_links(plan, grid), *_chips(grid), *_trees(plan, grid, flow)])
    for (x, y), (_, block) in zip(places, blocks, strict=True):
        yield _group(x, y, block)
    if mesh.size <= TOOLTIPS:
        yield _group(left, top, _tooltips(plan, grid))
    yield "</svg>\n"


def _labels(grid: _Grid) -> Iterator[str]:
    """Row and col numbers along the rims, as many as there is room for."""
    every = 1 if grid.cell >= 24 else 2
    flat = grid.mesh.layers == 1
    for way, numbers, step in ((0, grid.mesh.cols, 1), (3, grid.mesh.rows, grid.mesh.cols)):
        along = (STUB if grid.mesh.wrap[way % 2] else HALF) + 12 / grid.cell
        for number in range(0, numbers, every) if flat else ():
            x, y = grid.at(number * step, along, way)
            yield _text(x, y + 3.5, str(number), MUTED, font_size=10, text_anchor="middle")
    for layer in range(0 if flat else grid.mesh.layers):
        x, y = grid.at(layer * grid.mesh.rows * grid.mesh.cols, STUB, 0)
        yield _text(x - HALF * grid.cell, y - 8, f"layer {layer}", MUTED, font_size=max(8, min(11, grid.cell // 2)))


def _links(plan: Drawn, grid: _Grid) -> Iterator[str]:
    mesh, level, pen, cross = plan.mesh, _levels(plan), min(4.5, 0.09 * grid.cell), max(5.0, 0.24 * grid.cell)
    for number, colour in enumerate(LOAD):
        lines = [grid.line(chip, way, HALF, LANE) for chip, way in np.argwhere(level == number).tolist()]
        if lines:
            yield _path("".join(lines), class_=f"mm-load-{number}", stroke=colour, stroke_width=pen)
    dead = {grid.at(mesh.index(a), 0.5, mesh.way(a, b)) for link in mesh.dead_links for a, b in (link, link[::-1])}
    if dead:
        crosses = "".join(_cross(x, y, cross) for x, y in sorted(dead))
        yield _path(crosses, class_="mm-dead-links", stroke=DEAD_LINK, stroke_width=cross / 3.5)


def _levels(plan: Drawn) -> npt.NDArray[np.int64]:
    """The load level of each chip's links: 0 where idle, `LEVELS` at the max load, -1 where there is no link."""
    # Loads are sums of floats: one a hair over a step is that step.
    level = np.ceil(plan.load / plan.mesh.speed / (plan.max_load or 1) * LEVELS - 1e-9).astype(np.int64)
    return np.where(plan.mesh.neighbour >= 0, level.reshape(plan.mesh.size, -1), -1)


def _chips(grid: _Grid) -> Iterator[str]:
    side = 2 * HALF * grid.cell
    live = "".join(_square(*grid.at(int(chip)), side) for chip in grid.mesh.live)
    yield _path(live, class_="mm-chips", fill=CHIP)
    dead = [grid.at(grid.mesh.index(chip)) for chip in sorted(grid.mesh.dead_chips)]
    if dead:
        crossed = "".join(_square(x, y, 0.9 * side) + _cross(x, y, 0.45 * side) for x, y in dead)
        yield _path(crossed, class_="mm-dead-chips", stroke=DEAD_CHIP, stroke_width=min(2, side / 8))


def _trees(plan: Drawn, grid: _Grid, flow: int) -> Iterator[str]:
    if np.array_equal(plan.up[flow], plan.down[flow]):
        yield from _tree(grid, plan.up[flow], "mm-up", UP)
    else:
        # Moved apart as wholes, not each to the right of its way: a ring's two trees run the same way.
        yield from _tree(grid, plan.down[flow], "mm-down", DOWN, 0.075, back=True)
        yield from _tree(grid, plan.up[flow], "mm-up", UP, -0.075)
    yield _path(_square(*grid.at(int(plan.root[flow])), 2.2 * HALF * grid.cell), class_="mm-root", fill=UP)


def _tree(grid: _Grid, tree: Ways, name: str, colour: str, shift: float = 0, *, back: bool = False) -> Iterator[str]:
    """A tree's lines and heads: from chip to parent, or `back` from parent to chip and dashed."""
    thick, length, half = (0.055, 0.22, 0.08) if shift else (0.075, 0.26, 0.13)
    lines, heads = [], []
    for chip in np.flatnonzero(tree >= 0).tolist():
        way = int(tree[chip])
        lines.append(grid.line(chip, way))
        end, sign = (chip, 1) if back else (int(grid.mesh.neighbour[chip, way]), -1)
        shape = ((HALF, 0), (HALF + length, half), (HALF + length, -half))
        corners = (grid.at(end, sign * along, way, right) for along, right in shape)
        heads.append("M" + "L".join(f"{_num(x)} {_num(y)}" for x, y in corners) + "z")
    if lines:
        pen, move = max(1.0, thick * grid.cell), _num(shift * grid.cell)
        line = {"stroke_dasharray": f"{_num(2 * pen)} {_num(1.5 * pen)}"} if back else {"stroke_linecap": "round"}
        place = f"translate({move} {move})"
        yield _path("".join(lines), class_=name, transform=place, stroke=colour, stroke_width=pen, **line)
        yield _path("".join(heads), class_=f"{name}-heads", transform=place, fill=colour)


def _figures(plan: Drawn) -> Block:
    percent = f"{100 * plan.efficiency:.1f} % of the bound, {plan.bound.value:.2f} B".replace("inf", "∞")
    reason = plan.bound.reason + ("" if plan.overlap else "; this plan ends all reducing before it broadcasts")
    words = textwrap.wrap(reason, 38, max_lines=4, placeholder=" …")
    lines = [
        _text(0, 24, f"{plan.algbw:.2f} B".replace("inf", "∞"), font_size=30, font_weight=600),
        _text(PANEL, 24, "algbw", MUTED, text_anchor="end"),
        _tag("rect", y=38, width=PANEL, height=5, rx=2.5, fill=IDLE),
        _tag("rect", y=38, width=PANEL * min(1.0, plan.efficiency), height=5, rx=2.5, fill=LOAD[7]),
        _text(0, 61, percent),
        *(_text(0, 77 + 16 * i, line, MUTED) for i, line in enumerate(words)),
    ]
    y = 92 + 16 * len(words)
    for x, name, figure in ((0, "flows", len(plan)), (84, "depth", plan.depth), (168, "hops", plan.hops)):
        lines += [_text(x, y, str(figure), font_size=17, font_weight=600), _text(x, y + 15, name, MUTED)]
    return y + 15, lines


def _load_key(plan: Drawn) -> Block:
    """The colour bar under a histogram of the links: an even plan has one tall bar at its right end."""
    if not plan.max_load:
        return 0, []
    count = np.bincount(_levels(plan).ravel() + 1, minlength=LEVELS + 2)[1:]
    lines = [_text(0, 10, "load of a link, each direction", font_weight=600)]
    for i, colour in enumerate(LOAD[1:]):
        x, wide, tall = i * PANEL / LEVELS, PANEL / LEVELS, 34 * float(count[i + 1] / count[1:].max())
        for y, high, opacity in ((58 - tall, tall, 0.55), (60, 10, 1)):
            lines.append(_tag("rect", x=x, y=y, width=wide, height=high, fill=colour, fill_opacity=opacity))
    for part, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        lines.append(_text(part * PANEL, 84, _num(part * plan.max_load), text_anchor=anchor))
    lines.append(_text(0, 101, f"× payload; bars count links, {count[0]} idle", MUTED))
    return 101, lines


def _flow_key(plan: Drawn, flow: int) -> Block:
    root = plan.mesh.name(int(plan.root[flow]))
    far = max(depths(plan.mesh, trees[[flow]]).max() for trees in (plan.up, plan.down))
    same = np.array_equal(plan.up[flow], plan.down[flow])
    colour, dash, tree = (UP, "none", "the same tree back") if same else (DOWN, "5 3", "another tree, from the root")
    up = [_path("M0 0h22", stroke=UP, stroke_width=2.5), _path("M30 0l-9 -5v10z", fill=UP)]
    line = _path("M8 0h22", stroke=colour, stroke_width=2.5, stroke_dasharray=dash)
    down = [line, _path("M0 0l9 -5v10z", fill=colour)]
    name = f"flow {flow} (of 0 to {len(plan) - 1})" if len(plan) > 1 else "flow 0, the only one"
    rows = [[_path(_square(15, 0, 15), fill=UP), _text(40, 4, f"root {root}")]]
    if (plan.up[flow] >= 0).any():
        rows.append([*up, _text(40, 4, "up: reduces to the root")])
    if (plan.down[flow] >= 0).any() or len(rows) == 1:
        rows.append([*down, _text(40, 4, f"down: {tree}")])
    return 34 + 22 * len(rows), [
        _text(0, 10, name, font_weight=600),
        _text(0, 28, f"share {_num(100 * float(plan.share[flow]))} %, depth {far}", MUTED),
        *(_group(0, 48 + 22 * i, row) for i, row in enumerate(rows)),
    ]


def _hole_key(mesh: Mesh) -> Block:
    chips, links = len(mesh.dead_chips), len(mesh.dead_links)
    chip = _path(_square(15, 0, 13.5) + _cross(15, 0, 6.5), stroke=DEAD_CHIP, stroke_width=1.8)
    link = _path(_cross(15, 0, 8), stroke=DEAD_LINK, stroke_width=2.3)
    stubs = _path("M4 -4h22M4 4h22", stroke=LOAD[-1], stroke_width=2.5)
    slow = len(mesh.slow)
    line = _path("M4 0h22", stroke=MUTED, stroke_width=1.5, stroke_dasharray="3 3")
    rows = [(chips, chip, f"dead chips: {chips}"), (links, link, f"dead links: {links}")]
    rows.append((slow, line, f"slow links: {slow}, load counts for more"))
    rows.append((any(mesh.wrap), stubs, "wrap link: continues at the opposite rim"))
    shown = [[mark, _text(40, 4, text)] for there, mark, text in rows if there]
    return 22 * len(shown) - 6, [_group(0, 8 + 22 * i, row) for i, row in enumerate(shown)]


def _tooltips(plan: Drawn, grid: _Grid) -> Iterator[str]:
    """Unseen squares on top of everything, each with what its chip sends."""
    mesh, load, cell = plan.mesh, plan.load, grid.cell
    for chip in range(mesh.size):
        row, col = grid.cell_of(chip)
        sends = ", ".join(
            f"{way} {load[mesh.link_number(chip, w)]:.2f}"
            for w, way in enumerate(mesh.ways)
            if mesh.neighbour[chip, w] >= 0
        )
        state = f"sends {sends or 'nothing'} (× payload)" if mesh.alive[chip] else "dead"
        box = {"x": col * cell, "y": row * cell, "width": cell, "height": cell}
        yield _tag("rect", f"<title>chip {mesh.name(chip)}: {state}</title>", **box, pointer_events="all")
