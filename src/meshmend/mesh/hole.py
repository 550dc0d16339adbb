"""What fails, and the hole that it leaves: the chips and links of one failure, and failures that are alike.

A **piece** is a block of chips, or a link with its two ends; it covers `high` x `wide` (x `deep`) chips from (row, col)
(and layer) on, across a wrapped rim if need be. A **hole** is a tuple of pieces. Holes that differ only by a symmetry
of the mesh (a reflection, an exchange of sides that are alike, a shift along a wrapped side) have equal plans, so one
stands for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import permutations, product
from typing import NamedTuple

from meshmend.mesh.grid import STEP, Chip, Grid, Link

BOARD: Chip = (2, 2)
"""Chips that share a tray on TPU-v3."""
HOST: Chip = (4, 2)
"""Chips that share a host on TPU-v3."""
BLOCKS: dict[str, Chip] = {"chip": (1, 1), "board": BOARD, "host": HOST}
"""Blocks of chips that fail together on a flat mesh, smallest first."""
BLOCKS_3D: dict[str, Chip] = {"chip": (1, 1, 1), "host": (2, 2, 1), "cube": (4, 4, 4)}
"""The same on TPU v4, v5p and TPU7x: four chips share a host, 64 chips a cube."""
KINDS = (*BLOCKS, "link")
"""What can fail on a flat mesh, each by itself."""


class Piece(NamedTuple):
    """One failure: dead chips, or a dead link between the two chips it covers."""

    row: int
    col: int
    high: int
    wide: int
    link: bool = False
    layer: int = 0
    deep: int = 1

    @property
    def begin(self) -> Chip:
        """Its first chip, as (row, col, layer)."""
        return self.row, self.col, self.layer

    @property
    def sides(self) -> Chip:
        """How many rows, columns and layers it covers."""
        return self.high, self.wide, self.deep

    @property
    def size(self) -> int:
        """How many chips it covers."""
        return self.high * self.wide * self.deep


def piece_of(begin: Chip, sides: Chip, link: bool = False) -> Piece:
    """The piece that covers so many rows and columns (and layers) from a chip on."""
    row, col, layer = (*begin, 0)[:3]
    high, wide, deep = (*sides, 1)[:3]
    return Piece(row, col, high, wide, link, layer, deep)


Hole = tuple[Piece, ...]


def blocks(grid: Grid) -> dict[str, Chip]:
    """The blocks of chips that fail together on a grid, smallest first."""
    return BLOCKS if len(grid.dims) == 2 else BLOCKS_3D


def count(grid: Grid, kind: str) -> int:
    """How many things of a kind the intact grid has."""
    if kind == "link":
        return len(grid.links)
    down, across, through = _counts(grid, kind)
    return down * across * through


def _counts(grid: Grid, kind: str) -> Chip:
    """How many blocks of a kind lie side by side along each axis."""
    along = [-(-side // size) for side, size in zip(grid.dims, blocks(grid)[kind], strict=True)]
    return (*along, 1)[:3]


def piece(grid: Grid, kind: str, number: int) -> Piece:
    """The thing of a kind with this number; blocks are numbered row by row, layer by layer."""
    if kind == "link":
        chip, way = (int(value) for value in grid.links[number])
        return piece_of(grid.chip(chip), tuple(1 + (axis == STEP[way][0]) for axis in range(3)), link=True)
    down, across, _ = _counts(grid, kind)
    rest, col = divmod(number, across)
    layer, row = divmod(rest, down)
    sizes = blocks(grid)[kind]
    return block_at(grid, kind, tuple(n * size for n, size in zip((row, col, layer), sizes, strict=False)))


def block_at(grid: Grid, kind: str, chip: Chip) -> Piece:
    """The whole block of a kind that holds this chip, cut off at the rim."""
    sizes = blocks(grid)[kind]
    begin = tuple(place // size * size for place, size in zip(chip, sizes, strict=True))
    return piece_of(begin, tuple(min(s, d - b) for s, d, b in zip(sizes, grid.dims, begin, strict=True)))


def kind_of(piece: Piece) -> str:
    """The kind of a piece in either orientation; if a rim cuts it off, the smallest kind that has room for it."""
    if piece.link:
        return "link"
    return next(kind for kind, (high, wide) in BLOCKS.items() if piece.size <= high * wide)


def chips_of(grid: Grid, piece: Piece) -> list[Chip]:
    """The chips that a piece covers."""
    axes = zip(piece.begin, piece.sides, grid.dims, strict=False)
    return list(product(*([(begin + i) % size for i in range(side)] for begin, side, size in axes)))


def dead(grid: Grid, hole: Iterable[Piece]) -> tuple[set[Chip], set[Link]]:
    """The dead chips, and the dead links between live chips, each with its lower end first."""
    hole = tuple(hole)
    chips = {chip for piece in hole if not piece.link for chip in chips_of(grid, piece)}
    pairs = (tuple(sorted(chips_of(grid, piece))) for piece in hole if piece.link)
    return chips, {(a, b) for a, b in pairs if a not in chips and b not in chips}


def alike(grid: Grid, hole: Iterable[Piece]) -> Hole:
    """The hole that stands for all holes like this one, without pieces that others cover."""
    hole = _bare(grid, hole)
    if not hole:
        return ()
    return min(_turned(grid, hole))


def _bare(grid: Grid, hole: Iterable[Piece]) -> Hole:
    blocks: list[Piece] = []
    covered: set[Chip] = set()
    pieces = sorted(set(hole), key=lambda piece: (-piece.size, piece))
    for block in (piece for piece in pieces if not piece.link):
        if not covered.issuperset(chips_of(grid, block)):
            blocks.append(block)
            covered.update(chips_of(grid, block))
    links = [piece for piece in pieces if piece.link and covered.isdisjoint(chips_of(grid, piece))]
    return tuple(sorted(blocks + links))


def _turned(grid: Grid, hole: Hole) -> Iterator[Hole]:
    """Every image of a hole that could be the least one: on a wrapped side some piece begins at 0."""
    dims = (*grid.dims, 1)[:3]
    wrap = (*grid.wrap, False)[:3]
    for order in permutations(range(len(grid.dims))):
        if any((dims[a], wrap[a]) != (dims[b], wrap[b]) for a, b in enumerate(order)):
            continue  # only sides that are alike can be exchanged
        axes = (*order, 2)[:3]
        swapped = [
            (tuple(p.begin[a] for a in axes), tuple(p.sides[a] for a in axes), p.link) for p in hole
        ]  # fmt: skip
        for flips in product(*((False, True) for _ in grid.dims)):
            flip = (*flips, False)[:3]
            turned = [(_flipped(begin, sides, dims, flip), sides, link) for begin, sides, link in swapped]
            starts = [{begin[a] for begin, _, _ in turned} if wrap[a] else {0} for a in range(3)]
            for start in product(*starts):
                yield tuple(
                    sorted(
                        piece_of(tuple((b - o) % d for b, o, d in zip(begin, start, dims, strict=True)), sides, link)
                        for begin, sides, link in turned
                    )
                )


def _flipped(begin: Chip, sides: Chip, dims: Chip, flip: tuple[bool, ...]) -> Chip:
    axes = zip(begin, sides, dims, flip, strict=True)
    return tuple((size - at - side) % size if flipped else at for at, side, size, flipped in axes)


def dangling(grid: Grid, hole: Hole) -> set[Chip]:
    """Live chips with one live link or none, and those that would be if these were idle, and so on."""
    gone, links = dead(grid, hole)
    idle: set[Chip] = set()
    look = {there for chip in gone for _, there in grid.around(chip)} | {chip for link in links for chip in link}
    while look:
        chip = look.pop()
        if chip in gone or chip in idle:
            continue
        near = [there for _, there in grid.around(chip) if there not in gone and there not in idle]
        if sum((min(chip, there), max(chip, there)) not in links for there in near) <= 1:
            idle.add(chip)
            look.update(near)
    return idle
