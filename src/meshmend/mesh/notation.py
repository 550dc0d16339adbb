"""The mesh notation: one line of text, the same in Python, on the command line and in files.

    16x32                      rows x cols          128x32 wrap=y       the ends of each row joined
    8x8x8 wrap=xyz             rows x cols x layers 16x16 wrap=xy       a torus
    tpu-v3-1024                a preset             machine.textproto   a file with a mesh graph descriptor
    -4x2@6,12                  a dead block of 4 rows and 2 cols whose first chip is row 6, col 12
    -2x2x1@0,0,3               the same in three dimensions, in layer 3
    -chip@3,4                  a dead chip          -link@3,4:3,5       a dead link
    -board@r,c  -host@r,c      the whole 2x2 board or 4x2 host that holds chip r,c; in three dimensions
    -host@r,c,l -cube@r,c,l    the 2x2x1 host or the 4x4x4 cube
    ~0.5@3,4:3,5               a link at half speed (3/4 works too)
    ~0.25@z                    every link along an axis: x joins rows, y columns, z layers

`str(mesh)` writes the same notation with dead chips gathered into blocks, and `Mesh.parse` reads it back to
an equal mesh. This file knows grids and what is dead or slow of them; `mesh.py` makes a mesh of the two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from fractions import Fraction
from typing import NamedTuple, NoReturn

from meshmend.errors import MeshError
from meshmend.mesh.cabling import speed_text as speed_text
from meshmend.mesh.descriptor import ENDING, read_descriptor
from meshmend.mesh.grid import AXES, SIDES, Chip, Grid, Link, chip_text
from meshmend.mesh.hole import BLOCKS, BLOCKS_3D, block_at, blocks, chips_of, piece_of
from meshmend.mesh.presets import PRESETS

GRAMMAR = (
    "ROWSxCOLS or a preset, then wrap=x|y|xy, -ROWSxCOLS@ROW,COL, -chip@ROW,COL, -link@ROW,COL:ROW,COL, "
    "-board@ROW,COL, -host@ROW,COL or ~SPEED@ROW,COL:ROW,COL; in three dimensions ROWSxCOLSxLAYERS, wrap=z and "
    "ROW,COL,LAYER"
)
HOLE = {
    2: "a hole is -ROWSxCOLS@ROW,COL, -chip@R,C, -link@R,C:R,C, -board@R,C or -host@R,C",
    3: "a hole is -ROWSxCOLSxLAYERS@ROW,COL,LAYER, -chip@R,C,L, -link@R,C,L:R,C,L, -host@R,C,L or -cube@R,C,L",
}
SLOW = "a slow link is ~SPEED@CHIP:CHIP such as ~0.5@3,4:3,5, and a slow axis ~SPEED@x, with a speed such as 0.5 or 3/4"
FINEST = 1000
"""The largest denominator of a speed: thousandths of a link's full speed."""
_NUMBER = r"-?[0-9]{1,9}"
_PLACES = rf"{_NUMBER}(?:,{_NUMBER}){{1,2}}"
_SIZE = re.compile(rf"{_NUMBER}(?:x{_NUMBER}){{1,2}}")
_HOLE = re.compile(rf"-?(?:(?P<kind>{'|'.join({**BLOCKS, **BLOCKS_3D})})|(?P<size>{_SIZE.pattern}))@(?P<at>{_PLACES})")
_LINK = re.compile(rf"-?link@({_PLACES}):({_PLACES})")
_SLOW = re.compile(rf"~([0-9.]{{1,12}}(?:/[0-9]{{1,9}})?)@(?:([{AXES}])|({_PLACES}):({_PLACES}))")
_WRAPS = {
    "wrap=" + "".join(axis for axis, there in zip(AXES, some, strict=True) if there): some
    for some in ((x, y, z) for x in (False, True) for y in (False, True) for z in (False, True))
    if any(some)
}


class Dead(NamedTuple):
    """What tokens kill."""

    chips: list[Chip]
    links: list[Link]


class Slow(NamedTuple):
    """What tokens slow down."""

    axes: dict[int, Fraction]
    links: dict[Link, Fraction]


def _refuse(text: str, token: str, at: int, why: str) -> NoReturn:
    where = f" at character {at + 1} of {text!r}" if token != text else ""
    raise MeshError(f"cannot read {token!r}{where}: {why}")


def parse(text: str) -> tuple[Grid, Dead, Slow]:
    """Read a whole mesh: its grid, and what is dead and slow of it."""
    tokens = [(m.group(), m.start()) for m in re.finditer(r"\S+", text)]
    if not tokens:
        raise MeshError(f"the mesh is empty: expected {GRAMMAR}")
    first, at = tokens[0]
    named = read_descriptor(first) if first.endswith(ENDING) else PRESETS.get(first, first)
    size, *more = named.split()
    if not _SIZE.fullmatch(size):
        _refuse(text, first, at, f"a mesh begins with ROWSxCOLS such as 16x32, or a preset ({', '.join(PRESETS)})")
    dims = _numbers(size, "x")
    wrap = next((_WRAPS[word] for word in more if word in _WRAPS), (False,) * len(AXES))
    rest = [(word, at) for word in more if word not in _WRAPS]
    wrap_seen = False
    for token, at in tokens[1:]:
        if token.startswith("wrap="):
            if wrap_seen or token not in _WRAPS or (len(dims) == 2 and "z" in token):
                layers = ", and z (of the layers)" * (len(dims) > 2)
                takes = f"wrap takes x (join the ends of the columns), y (of the rows) or xy{layers}, once"
                _refuse(text, token, at, takes)
            wrap, wrap_seen = _WRAPS[token], True
        elif token[0] in "-~":
            rest.append((token, at))
        else:
            _refuse(text, token, at, f"expected {GRAMMAR}")
    try:
        grid = Grid(dims[0], dims[1], wrap, layers=(*dims, 1)[2])
    except MeshError as error:
        raise MeshError(f"cannot build {text!r}: {error}") from None
    dead, slow = Dead([], []), Slow({}, {})
    for token, at in rest:
        if token.startswith("~"):
            more_slow = read_slow(grid, token, text, at)
            slow.axes.update(more_slow.axes)
            slow.links.update(more_slow.links)
        else:
            more_dead = read_hole(grid, token, text, at)
            dead.chips.extend(more_dead.chips)
            dead.links.extend(more_dead.links)
    return grid, dead, slow


def _numbers(text: str, between: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(between)))


def read_hole(grid: Grid, token: str, text: str, at: int = 0) -> Dead:
    """The chips and links that one token such as `-4x2@6,12` kills (the minus may be left out)."""
    if m := _LINK.fullmatch(token):
        try:
            return Dead([], [grid.link((_numbers(m[1], ","), _numbers(m[2], ",")))])
        except MeshError as error:
            _refuse(text, token, at, str(error))
    m = _HOLE.fullmatch(token)
    flat = len(grid.dims) == 2
    begin = _numbers(m["at"], ",") if m else ()
    sides = _numbers(m["size"], "x") if m and m["size"] else (1,) * len(begin)
    if m and flat and len(begin) == 3 and grid.rows * grid.cols > 0 and begin[2] == 0 and sides[2:] == (1,):
        begin, sides = begin[:2], sides[:2]  # 4x4x1 is flat, and its chips may be written as of one layer
    if not m or len(begin) != len(grid.dims) or len(sides) != len(begin) or (m["kind"] or "chip") not in blocks(grid):
        _refuse(text, token, at, HOLE[len(grid.dims)])
    if m["kind"]:
        try:
            return Dead(chips_of(grid, block_at(grid, m["kind"], grid.inside(begin))), [])
        except MeshError as error:
            _refuse(text, token, at, str(error))
    if min(sides) < 1:
        least = "1 row and 1 col" if flat else "1 row, 1 col and 1 layer"
        _refuse(text, token, at, f"a block needs at least {least}, not {'x'.join(map(str, sides))}")
    if any(b < 0 or b + s > d for b, s, d in zip(begin, sides, grid.dims, strict=True)):
        spans = [f"{name} {b} to {b + s - 1}" for name, b, s in zip(SIDES, begin, sides, strict=False)]
        whole = ", ".join(f"{name} 0 to {d - 1}" for name, d in zip(SIDES, grid.dims, strict=False))
        covers = ", ".join(spans[:-1]) + f" and {spans[-1]}"
        _refuse(text, token, at, f"the block covers {covers}, outside the {grid.size_text} mesh ({whole})")
    return Dead(chips_of(grid, piece_of(begin, sides)), [])


def read_slow(grid: Grid, token: str, text: str, at: int = 0) -> Slow:
    """The link or axis that one token such as `~0.5@3,4:3,5` slows down."""
    m = _SLOW.fullmatch(token)
    try:
        speed = Fraction(m[1]) if m else Fraction(0)
    except (ValueError, ZeroDivisionError):
        m = None
    if not m:
        _refuse(text, token, at, SLOW)
    if not 0 < speed <= 1:
        _refuse(text, token, at, f"a speed of {m[1]} was given: it is above 0 and at most 1, full speed "
                "(write a dead link as -link@CHIP:CHIP)")  # fmt: skip
    if speed.denominator > FINEST:
        _refuse(
            text, token, at, f"a speed of {m[1]} is finer than thousandths: round it, for example to {float(speed):.3f}"
        )
    if m[2]:
        axis = AXES.index(m[2])
        if axis >= len(grid.dims):
            _refuse(text, token, at, f"{grid.size_text} has the axes {' and '.join(AXES[: len(grid.dims)])}")
        return Slow({axis: speed}, {})
    try:
        return Slow({}, {grid.link((_numbers(m[3], ","), _numbers(m[4], ","))): speed})
    except MeshError as error:
        _refuse(text, token, at, str(error))


def format_mesh(
    grid: Grid,
    dead_chips: Set[Chip],
    dead_links: Set[Link],
    axes: tuple[Fraction, ...] = (),
    slow: Mapping[Link, Fraction] | None = None,
) -> str:
    """The shortest-looking notation: dead chips as blocks, widest first from the top left of the first layer."""
    words = [grid.size_text]
    if any(grid.wrap):
        words.append("wrap=" + "".join(axis for axis, wrapped in zip(AXES, grid.wrap, strict=False) if wrapped))
    left = set(dead_chips)
    for chip in sorted(dead_chips, key=lambda chip: (chip[2:], chip)):
        if chip not in left:
            continue
        sides = [1] * len(grid.dims)
        for axis in (1, 0, 2)[: len(grid.dims)]:
            while True:
                beyond = (*chip[:axis], chip[axis] + sides[axis], *chip[axis + 1 :])
                face = tuple(1 if a == axis else side for a, side in enumerate(sides))
                if beyond[axis] >= grid.dims[axis] or not left.issuperset(chips_of(grid, piece_of(beyond, face))):
                    break
                sides[axis] += 1
        block = chips_of(grid, piece_of(chip, tuple(sides)))
        left.difference_update(block)
        what = "x".join(map(str, sides)) if len(block) > 1 else "chip"
        words.append(f"-{what}@{chip_text(chip)}")
    words += [f"-link@{chip_text(a)}:{chip_text(b)}" for a, b in sorted(dead_links)]
    words += [f"~{speed_text(speed)}@{AXES[axis]}" for axis, speed in enumerate(axes) if speed != 1]
    words += [f"~{speed_text(speed)}@{chip_text(a)}:{chip_text(b)}" for (a, b), speed in sorted((slow or {}).items())]
    return " ".join(words)
