"""The mesh notation: one line of text, the same in Python, on the command line and in files.

    16x32                      rows x cols          128x32 wrap=y       the ends of each row joined
    tpu-v3-1024                a preset             16x16 wrap=xy       a torus
    -4x2@6,12                  a dead block of 4 rows and 2 cols whose first chip is row 6, col 12
    -chip@3,4                  a dead chip          -link@3,4:3,5       a dead link
    -board@r,c  -host@r,c      the whole 2x2 board or 4x2 host that holds chip r,c

`str(mesh)` writes the same notation with dead chips gathered into blocks, and `Mesh.parse` reads it back to
an equal mesh. This file knows grids and what is dead of them; `mesh.py` makes a mesh of the two.
"""

from __future__ import annotations

import re
from collections.abc import Set
from typing import NamedTuple, NoReturn

from meshmend.errors import MeshError
from meshmend.mesh.grid import Chip, Grid, Link
from meshmend.mesh.hole import BLOCKS, Piece, block_at, chips_of

PRESETS = {
    "tpu-v3-512": "16x32",
    "tpu-v3-1024": "32x32",
    "tpu-v3-multipod": "128x32 wrap=y",
}
"""Machines by name. Sizes as run for MLPerf 0.7: TPU-v3 slices, hosts of 4x2 chips, boards of 2x2."""
GRAMMAR = (
    "ROWSxCOLS or a preset, then wrap=x|y|xy, -ROWSxCOLS@ROW,COL, -chip@ROW,COL, -link@ROW,COL:ROW,COL, "
    "-board@ROW,COL or -host@ROW,COL"
)
_NUMBER = r"(-?[0-9]{1,9})"
_SIZE = re.compile(rf"{_NUMBER}x{_NUMBER}")
_HOLE = re.compile(rf"-?(?:(?P<kind>{'|'.join(BLOCKS)})|{_NUMBER}x{_NUMBER})@{_NUMBER},{_NUMBER}")
_LINK = re.compile(rf"-?link@{_NUMBER},{_NUMBER}:{_NUMBER},{_NUMBER}")
_WRAP = {"wrap=x": (True, False), "wrap=y": (False, True), "wrap=xy": (True, True)}


class Dead(NamedTuple):
    """What tokens kill."""

    chips: list[Chip]
    links: list[Link]


def _refuse(text: str, token: str, at: int, why: str) -> NoReturn:
    where = f" at character {at + 1} of {text!r}" if token != text else ""
    raise MeshError(f"cannot read {token!r}{where}: {why}")


def parse(text: str) -> tuple[Grid, Dead]:
    """Read a whole mesh: its grid, and what is dead of it."""
    tokens = [(m.group(), m.start()) for m in re.finditer(r"\S+", text)]
    if not tokens:
        raise MeshError(f"the mesh is empty: expected {GRAMMAR}")
    first, at = tokens[0]
    base = PRESETS.get(first, first)
    size = _SIZE.fullmatch(base.split()[0])
    if not size:
        _refuse(text, first, at, f"a mesh begins with ROWSxCOLS such as 16x32, or a preset ({', '.join(PRESETS)})")
    wrap = _WRAP[base.split()[1]] if " " in base else (False, False)
    holes: list[tuple[str, int]] = []
    wrap_seen = False
    for token, at in tokens[1:]:
        if token.startswith("wrap="):
            if wrap_seen or token not in _WRAP:
                _refuse(text, token, at, "wrap takes x (join the ends of the columns), y (of the rows) or xy, once")
            wrap, wrap_seen = _WRAP[token], True
        elif token.startswith("-"):
            holes.append((token, at))
        else:
            _refuse(text, token, at, f"expected {GRAMMAR}")
    try:
        grid = Grid(int(size[1]), int(size[2]), wrap)
    except MeshError as error:
        raise MeshError(f"cannot build {text!r}: {error}") from None
    chips: list[Chip] = []
    links: list[Link] = []
    for token, at in holes:
        dead = read_hole(grid, token, text, at)
        chips += dead.chips
        links += dead.links
    return grid, Dead(chips, links)


def read_hole(grid: Grid, token: str, text: str, at: int = 0) -> Dead:
    """The chips and links that one token such as `-4x2@6,12` kills (the minus may be left out)."""
    if m := _LINK.fullmatch(token):
        a, b, c, d = map(int, m.groups())
        try:
            return Dead([], [grid.link(((a, b), (c, d)))])
        except MeshError as error:
            _refuse(text, token, at, str(error))
    if not (m := _HOLE.fullmatch(token)):
        _refuse(text, token, at, "a hole is -ROWSxCOLS@ROW,COL, -chip@R,C, -link@R,C:R,C, -board@R,C or -host@R,C")
    row, col = int(m[4]), int(m[5])
    if m["kind"]:
        try:
            return Dead(chips_of(grid, block_at(grid, m["kind"], grid.inside((row, col)))), [])
        except MeshError as error:
            _refuse(text, token, at, str(error))
    high, wide = int(m[2]), int(m[3])
    if high < 1 or wide < 1:
        _refuse(text, token, at, f"a block needs at least 1 row and 1 col, not {high}x{wide}")
    if row < 0 or col < 0 or row + high > grid.rows or col + wide > grid.cols:
        _refuse(
            text,
            token,
            at,
            f"the block covers rows {row} to {row + high - 1} and cols {col} to {col + wide - 1}, "
            f"outside the {grid.rows}x{grid.cols} mesh (rows 0 to {grid.rows - 1}, cols 0 to {grid.cols - 1})",
        )
    return Dead(chips_of(grid, Piece(row, col, high, wide)), [])


def format_mesh(grid: Grid, dead_chips: Set[Chip], dead_links: Set[Link]) -> str:
    """The shortest-looking notation: dead chips as blocks, widest first from the top left."""
    words = [f"{grid.rows}x{grid.cols}"]
    if any(grid.wrap):
        words.append("wrap=" + "x" * grid.wrap[0] + "y" * grid.wrap[1])
    left = set(dead_chips)
    for row, col in sorted(dead_chips):
        if (row, col) not in left:
            continue
        wide = 1
        while (row, col + wide) in left:
            wide += 1
        high = 1
        while all((row + high, col + j) in left for j in range(wide)):
            high += 1
        left.difference_update(chips_of(grid, Piece(row, col, high, wide)))
        words.append(f"-{high}x{wide}@{row},{col}" if high * wide > 1 else f"-chip@{row},{col}")
    words += [f"-link@{a[0]},{a[1]}:{b[0]},{b[1]}" for a, b in sorted(dead_links)]
    return " ".join(words)
