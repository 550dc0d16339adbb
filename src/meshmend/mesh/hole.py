"""What fails, and the hole that it leaves: the chips and links of one failure, and failures that are alike.

A **piece** is a block of chips, or a link with its two ends; it covers `high` x `wide` chips from (row, col) on, across
a wrapped rim if need be. A **hole** is a tuple of pieces. Holes that differ only by a symmetry of the mesh (a
reflection, the transposition of a square, a shift along a wrapped side) have equal plans, so one stands for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple

from meshmend.mesh.grid import Chip, E, Grid, Link

BOARD: Chip = (2, 2)
"""Chips that share a tray on TPU-v3."""
HOST: Chip = (4, 2)
"""Chips that share a host on TPU-v3."""
BLOCKS: dict[str, Chip] = {"chip": (1, 1), "board": BOARD, "host": HOST}
"""Blocks of chips that fail together, smallest first."""
KINDS = (*BLOCKS, "link")
"""What can fail, each by itself."""


class Piece(NamedTuple):
    """One failure: dead chips, or a dead link between the two chips it covers."""

    row: int
    col: int
    high: int
    wide: int
    link: bool = False


Hole = tuple[Piece, ...]


def count(grid: Grid, kind: str) -> int:
    """How many things of a kind the intact grid has."""
    if kind == "link":
        return len(grid.links)
    high, wide = BLOCKS[kind]
    return -(-grid.rows // high) * -(-grid.cols // wide)


def piece(grid: Grid, kind: str, number: int) -> Piece:
    """The thing of a kind with this number; blocks are numbered row by row."""
    if kind == "link":
        chip, way = (int(value) for value in grid.links[number])
        return Piece(*grid.chip(chip), *((1, 2) if way == E else (2, 1)), link=True)
    high, wide = BLOCKS[kind]
    down, right = divmod(number, -(-grid.cols // wide))
    return block_at(grid, kind, (down * high, right * wide))


def block_at(grid: Grid, kind: str, chip: Chip) -> Piece:
    """The whole chip, board or host that holds this chip, cut off at the rim."""
    high, wide = BLOCKS[kind]
    row, col = chip[0] // high * high, chip[1] // wide * wide
    return Piece(row, col, min(high, grid.rows - row), min(wide, grid.cols - col))


def kind_of(piece: Piece) -> str:
    """The kind of a piece in either orientation; if a rim cuts it off, the smallest kind that has room for it."""
    if piece.link:
        return "link"
    return next(kind for kind, (high, wide) in BLOCKS.items() if piece.high * piece.wide <= high * wide)


def chips_of(grid: Grid, piece: Piece) -> list[Chip]:
    """The chips that a piece covers."""
    return [
        ((piece.row + i) % grid.rows, (piece.col + j) % grid.cols) for i in range(piece.high) for j in range(piece.wide)
    ]


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
    pieces = sorted(set(hole), key=lambda piece: (-piece.high * piece.wide, piece))
    for block in (piece for piece in pieces if not piece.link):
        if not covered.issuperset(chips_of(grid, block)):
            blocks.append(block)
            covered.update(chips_of(grid, block))
    links = [piece for piece in pieces if piece.link and covered.isdisjoint(chips_of(grid, piece))]
    return tuple(sorted(blocks + links))


def _turned(grid: Grid, hole: Hole) -> Iterator[Hole]:
    """Every image of a hole that could be the least one: on a wrapped side some piece begins at 0."""
    square = grid.rows == grid.cols and grid.wrap[0] == grid.wrap[1]
    for across, over, swap in product((False, True), (False, True), (False, True) if square else (False,)):
        turned = hole
        if swap:
            turned = tuple(Piece(p.col, p.row, p.wide, p.high, p.link) for p in turned)
        if across:
            turned = tuple(p._replace(row=(grid.rows - p.row - p.high) % grid.rows) for p in turned)
        if over:
            turned = tuple(p._replace(col=(grid.cols - p.col - p.wide) % grid.cols) for p in turned)
        downs = {p.row for p in turned} if grid.wrap[0] else {0}
        rights = {p.col for p in turned} if grid.wrap[1] else {0}
        for down, right in product(downs, rights):
            yield tuple(
                sorted(p._replace(row=(p.row - down) % grid.rows, col=(p.col - right) % grid.cols) for p in turned)
            )


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
