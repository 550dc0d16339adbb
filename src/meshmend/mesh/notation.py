"""The mesh notation: one line of text, the same in Python, on the command line and in files.

    16x32                      rows x cols          128x32 wrap=y       the ends of each row joined
    tpu-v3-1024                a preset             16x16 wrap=xy       a torus
    -4x2@6,12                  a dead block of 4 rows and 2 cols whose first chip is row 6, col 12
    -chip@3,4                  a dead chip          -link@3,4:3,5       a dead link
    -board@r,c  -host@r,c      the whole 2x2 board or 4x2 host that holds chip r,c

`str(mesh)` writes the same notation with dead chips gathered into blocks, and `Mesh.parse` reads it back to
an equal mesh.
"""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

from meshmend.errors import Chip, MeshError
from meshmend.mesh.mesh import BOARD, HOST, Link, Mesh
from meshmend.mesh.presets import PRESETS

GRAMMAR = (
    "ROWSxCOLS or a preset, then wrap=x|y|xy, -ROWSxCOLS@ROW,COL, -chip@ROW,COL, -link@ROW,COL:ROW,COL, "
    "-board@ROW,COL or -host@ROW,COL"
)
_NUMBER = r"(-?[0-9]{1,9})"
_SIZE = re.compile(rf"{_NUMBER}x{_NUMBER}")
_HOLE = re.compile(rf"-?(?:(?P<kind>chip|board|host)|{_NUMBER}x{_NUMBER})@{_NUMBER},{_NUMBER}")
_LINK = re.compile(rf"-?link@{_NUMBER},{_NUMBER}:{_NUMBER},{_NUMBER}")
_WRAP = {"wrap=x": (True, False), "wrap=y": (False, True), "wrap=xy": (True, True)}


class Hole(NamedTuple):
    """What one token kills."""

    chips: list[Chip]
    links: list[Link]


def _refuse(text: str, token: str, at: int, why: str) -> NoReturn:
    where = f" at character {at + 1} of {text!r}" if token != text else ""
    raise MeshError(f"cannot read {token!r}{where}: {why}")


def parse(text: str) -> Mesh:
    """Read a whole mesh."""
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
        mesh = Mesh(int(size[1]), int(size[2]), wrap)
    except MeshError as error:
        raise MeshError(f"cannot build {text!r}: {error}") from None
    chips: list[Chip] = []
    links: list[Link] = []
    for token, at in holes:
        dead = read_hole(mesh, token, text, at)
        chips += dead.chips
        links += dead.links
    try:
        return Mesh(mesh.rows, mesh.cols, wrap, frozenset(chips), frozenset(links))
    except MeshError as error:
        raise MeshError(f"cannot build {text!r}: {error}") from None


def read_hole(mesh: Mesh, token: str, text: str, at: int = 0) -> Hole:
    """The chips and links that one token such as `-4x2@6,12` kills (the minus may be left out)."""
    if m := _LINK.fullmatch(token):
        a, b, c, d = map(int, m.groups())
        try:
            return Hole([], [mesh._checked_link(((a, b), (c, d)))])
        except MeshError as error:
            _refuse(text, token, at, str(error))
    if not (m := _HOLE.fullmatch(token)):
        _refuse(text, token, at, "a hole is -ROWSxCOLS@ROW,COL, -chip@R,C, -link@R,C:R,C, -board@R,C or -host@R,C")
    row, col = int(m[4]), int(m[5])
    if m["kind"]:
        height, width = {"chip": (1, 1), "board": BOARD, "host": HOST}[m["kind"]]
        try:
            mesh._inside((row, col))
        except MeshError as error:
            _refuse(text, token, at, str(error))
        row, col = row // height * height, col // width * width
        height, width = min(height, mesh.rows - row), min(width, mesh.cols - col)
    else:
        height, width = int(m[2]), int(m[3])
        if height < 1 or width < 1:
            _refuse(text, token, at, f"a block needs at least 1 row and 1 col, not {height}x{width}")
        if row < 0 or col < 0 or row + height > mesh.rows or col + width > mesh.cols:
            _refuse(
                text,
                token,
                at,
                f"the block covers rows {row} to {row + height - 1} and cols {col} to {col + width - 1}, "
                f"outside the {mesh.rows}x{mesh.cols} mesh (rows 0 to {mesh.rows - 1}, cols 0 to {mesh.cols - 1})",
            )
    return Hole([(row + i, col + j) for i in range(height) for j in range(width)], [])


def format_mesh(mesh: Mesh) -> str:
    """The shortest-looking notation: dead chips as blocks, widest first from the top left."""
    words = [f"{mesh.rows}x{mesh.cols}"]
    if any(mesh.wrap):
        words.append("wrap=" + "x" * mesh.wrap[0] + "y" * mesh.wrap[1])
    left = set(mesh.dead_chips)
    for row, col in sorted(mesh.dead_chips):
        if (row, col) not in left:
            continue
        width = 1
        while (row, col + width) in left:
            width += 1
        height = 1
        while all((row + height, col + j) in left for j in range(width)):
            height += 1
        left -= {(row + i, col + j) for i in range(height) for j in range(width)}
        words.append(f"-{height}x{width}@{row},{col}" if height * width > 1 else f"-chip@{row},{col}")
    words += [f"-link@{a[0]},{a[1]}:{b[0]},{b[1]}" for a, b in sorted(mesh.dead_links)]
    return " ".join(words)
