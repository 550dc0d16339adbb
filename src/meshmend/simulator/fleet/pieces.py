"""What fails, and the hole that pieces leave: the chips and links of one failure, and many failures that are alike.

A **piece** is a block of chips, or a link with its two ends; it covers `high` x `wide` chips from (row, col) on, across
a wrapped rim if need be. A **hole** is a tuple of pieces. Holes that differ only by a symmetry of the mesh (a
reflection, the transposition of a square, a shift along a wrapped side) have equal plans, so one stands for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple

from meshmend.errors import Chip
from meshmend.mesh import Mesh
from meshmend.mesh.mesh import BOARD, HOST, STEP, Link

BLOCKS: dict[str, Chip] = {"chip": (1, 1), "board": BOARD, "host": HOST}


class Piece(NamedTuple):
    """One failure: dead chips, or a dead link between the two chips it covers."""

    row: int
    col: int
    high: int
    wide: int
    link: bool = False


Hole = tuple[Piece, ...]


def count(mesh: Mesh, kind: str) -> int:
    """How many things of a kind the intact mesh has."""
    if kind == "link":
        return len(mesh.links)
    high, wide = BLOCKS[kind]
    return -(-mesh.rows // high) * -(-mesh.cols // wide)


def piece(mesh: Mesh, kind: str, number: int) -> Piece:
    """The thing of a kind with this number."""
    if kind == "link":
        chip, way = (int(value) for value in mesh.links[number])
        return Piece(*divmod(chip, mesh.cols), *((1, 2) if way == 1 else (2, 1)), link=True)
    high, wide = BLOCKS[kind]
    down, right = divmod(number, -(-mesh.cols // wide))
    row, col = down * high, right * wide
    return Piece(row, col, min(high, mesh.rows - row), min(wide, mesh.cols - col))


def kind_of(piece: Piece) -> str:
    """The kind of a piece, whichever way round it lies; cut off by a rim, the least kind that has room for it."""
    if piece.link:
        return "link"
    return next(kind for kind, (high, wide) in BLOCKS.items() if piece.high * piece.wide <= high * wide)


def chips_of(mesh: Mesh, piece: Piece) -> list[Chip]:
    """The chips that a piece covers."""
    return [
        ((piece.row + i) % mesh.rows, (piece.col + j) % mesh.cols) for i in range(piece.high) for j in range(piece.wide)
    ]


def dead(mesh: Mesh, hole: Iterable[Piece]) -> tuple[set[Chip], set[Link]]:
    """The dead chips, and the dead links between live chips, each with its lower end first."""
    hole = tuple(hole)
    chips = {chip for piece in hole if not piece.link for chip in chips_of(mesh, piece)}
    pairs = (tuple(sorted(chips_of(mesh, piece))) for piece in hole if piece.link)
    return chips, {(a, b) for a, b in pairs if a not in chips and b not in chips}


def alike(mesh: Mesh, hole: Iterable[Piece]) -> Hole:
    """The hole that stands for all holes like this one, without pieces that others cover."""
    hole = _bare(mesh, hole)
    if not hole:
        return ()
    return min(_turned(mesh, hole))


def _bare(mesh: Mesh, hole: Iterable[Piece]) -> Hole:
    blocks: list[Piece] = []
    covered: set[Chip] = set()
    pieces = sorted(set(hole), key=lambda piece: (-piece.high * piece.wide, piece))
    for block in (piece for piece in pieces if not piece.link):
        if not covered.issuperset(chips_of(mesh, block)):
            blocks.append(block)
            covered.update(chips_of(mesh, block))
    links = [piece for piece in pieces if piece.link and covered.isdisjoint(chips_of(mesh, piece))]
    return tuple(sorted(blocks + links))


def _turned(mesh: Mesh, hole: Hole) -> Iterator[Hole]:
    """Every image of a hole that could be the least one: on a wrapped side some piece begins at 0."""
    square = mesh.rows == mesh.cols and mesh.wrap[0] == mesh.wrap[1]
    for across, over, swap in product((False, True), (False, True), (False, True) if square else (False,)):
        turned = hole
        if swap:
            turned = tuple(Piece(p.col, p.row, p.wide, p.high, p.link) for p in turned)
        if across:
            turned = tuple(p._replace(row=(mesh.rows - p.row - p.high) % mesh.rows) for p in turned)
        if over:
            turned = tuple(p._replace(col=(mesh.cols - p.col - p.wide) % mesh.cols) for p in turned)
        downs = {p.row for p in turned} if mesh.wrap[0] else {0}
        rights = {p.col for p in turned} if mesh.wrap[1] else {0}
        for down, right in product(downs, rights):
            yield tuple(
                sorted(p._replace(row=(p.row - down) % mesh.rows, col=(p.col - right) % mesh.cols) for p in turned)
            )


def dangling(mesh: Mesh, hole: Hole) -> set[Chip]:
    """Live chips with one live link or none, and those that would be if these were idle, and so on."""
    gone, links = dead(mesh, hole)
    idle: set[Chip] = set()
    look = {there for chip in gone for there in _around(mesh, chip)} | {chip for link in links for chip in link}
    while look:
        chip = look.pop()
        if chip in gone or chip in idle:
            continue
        near = [there for there in _around(mesh, chip) if there not in gone and there not in idle]
        if sum((min(chip, there), max(chip, there)) not in links for there in near) <= 1:
            idle.add(chip)
            look.update(near)
    return idle


def _around(mesh: Mesh, chip: Chip) -> Iterator[Chip]:
    for down, right in STEP:
        row, col = chip[0] + down, chip[1] + right
        if (mesh.wrap[0] or 0 <= row < mesh.rows) and (mesh.wrap[1] or 0 <= col < mesh.cols):
            yield row % mesh.rows, col % mesh.cols


class Rectangle(NamedTuple):
    """A smaller mesh inside the mesh, across a wrapped rim if need be."""

    row: int
    col: int
    high: int
    wide: int

    @property
    def size(self) -> int:
        """Its chips."""
        return self.high * self.wide

    def holds(self, mesh: Mesh, piece: Piece) -> bool:
        """Whether a failure of this piece would be felt here."""
        inside = [
            (row - self.row) % mesh.rows < self.high and (col - self.col) % mesh.cols < self.wide
            for row, col in chips_of(mesh, piece)
        ]
        return all(inside) if piece.link else any(inside)


def rectangle(mesh: Mesh, hole: Hole) -> Rectangle:
    """The largest rectangle of whole hosts without a piece in it; size 0 where none is left.

    A dead link is kept out by leaving out its first end's host.
    """
    high, wide = HOST
    out = hosts_out(mesh, hole)
    if not out:
        return Rectangle(0, 0, mesh.rows, mesh.cols)
    best = Rectangle(0, 0, 0, 0)
    heads = {row + high for row, _ in out} | (set() if mesh.wrap[0] else {0})
    for head in sorted(head % mesh.rows if mesh.wrap[0] else head for head in heads):
        room = mesh.rows if mesh.wrap[0] else max(0, mesh.rows - head)
        ends = {(row - head) % mesh.rows for row, _ in out if mesh.wrap[0] or row >= head}
        for tall in sorted({room, *ends} - {0}):
            cols = sorted({col for row, col in out if (row - head) % mesh.rows < tall})
            begin, broad = _gap(mesh, cols, wide)
            if tall * broad > best.size:
                best = Rectangle(head, begin, tall, broad)
    return best


def _gap(mesh: Mesh, cols: list[int], wide: int) -> tuple[int, int]:
    """Begin and width of the widest run of columns between hosts at these columns."""
    if not cols:
        return 0, mesh.cols
    after = [*cols[1:], cols[0] + mesh.cols] if mesh.wrap[1] else [*cols[1:], mesh.cols]
    gaps = [(there - col - wide, (col + wide) % mesh.cols) for col, there in zip(cols, after, strict=True)]
    broad, begin = max(gaps if mesh.wrap[1] else [*gaps, (cols[0], 0)])
    return begin, max(0, broad)


def hosts_out(mesh: Mesh, hole: Iterable[Piece]) -> set[Chip]:
    """The hosts, by their first chip, that a hole takes out of use; of a dead link only its first end's."""
    high, wide = HOST
    return {
        (row // high * high, col // wide * wide)
        for piece in hole
        for row, col in (chips_of(mesh, piece)[:1] if piece.link else chips_of(mesh, piece))
    }
