"""Which piece of its input each chip puts into which chunk, and which chunk ends as which piece of its output.

All executors of collectives do the same before and after the table: a chip's input has `inputs` rows of equally many
numbers, each cut into `per` pieces; its output has `outputs` rows, cut likewise. Pieces are numbered row by row.

| collective | inputs | outputs | per |
|---|---|---|---|
| all_reduce in groups, broadcast | 1 | 1 | all chunks of a payload |
| reduce_scatter | one for each chip | 1 | chunks of a payload / chips |
| all_gather | 1 | one for each chip | chunks of a payload / chips |
| all_to_all | one for each chip | one for each chip | chunks of a payload / chips |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.errors import PlanError
from meshmend.mesh.collectives.schedule import CollectiveSchedule

Array = npt.NDArray[Any]
Places = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Pieces:
    """What goes in and what comes out, for all live chips in order of `mesh.live`."""

    inputs: int
    outputs: int
    per: int
    take: Places
    """[chip, chunk]: the piece of its input that a chip begins with; -1 for nothing."""
    give: Places
    """[chip, piece of its output]: the chunk that it is in the end; -1 - p for piece p of the chip's own input."""

    def row(self, shape: tuple[int, ...]) -> int:
        """The numbers in a row of one chip's input; a `PlanError` if that input has another shape."""
        size = int(np.prod(shape, dtype=np.int64))
        if size % self.inputs or (self.inputs > 1 and self.outputs > 1 and shape[:1] != (self.inputs,)):
            raise PlanError(
                f"an input of shape {shape} was given for {self.inputs} chips: give as many rows, or a multiple of it"
            )
        return size // self.inputs

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one chip's output, given that of its input."""
        if self.inputs == self.outputs:
            return shape
        return (self.row(shape) * self.outputs,)


def pieces_of(schedule: CollectiveSchedule) -> Pieces:
    """The pieces of a schedule."""
    mesh, kind, owner = schedule.mesh, schedule.kind, schedule.owner
    chips, chunks = len(mesh.live), np.arange(schedule.table.chunks)
    inputs = chips if kind.per_chip and (kind.up or kind.personal) else 1
    outputs = chips if kind.per_chip and kind.down else 1
    per = schedule.cut // chips if kind.per_chip else schedule.cut
    take = np.full((chips, len(chunks)), -1, np.int32)
    give = np.tile(-1 - np.arange(outputs * per, dtype=np.int32), (chips, 1))
    to = np.where(schedule.to >= 0, schedule.to, 0)
    at, turn = mesh.place[owner], _turn(owner.astype(np.int64) * mesh.size + to)
    if kind.personal:
        take[at, chunks] = mesh.place[to] * per + turn
        give[mesh.place[to], at * per + turn] = chunks
    elif kind.per_chip and kind.up:
        take[:] = at * per + turn
        give[at, turn] = chunks
    elif kind.per_chip:
        take[at, chunks] = turn
        give[:, at * per + turn] = chunks
    elif kind.rooted:
        take[at, chunks] = turn
        give[:, turn] = chunks
    else:
        chip, chunk = np.nonzero(schedule.group[mesh.live][:, None] == owner)
        take[chip, chunk] = turn[chunk]
        give[chip, turn[chunk]] = chunk
    return Pieces(inputs, outputs, per, take, give)


def cut(pieces: Pieces, part: Array) -> Array:
    """[piece, width]: one chip's input in equal pieces, with zeros behind the end of each row."""
    numbers = pieces.row(part.shape)
    width = -(-numbers // pieces.per)
    out = np.zeros((pieces.inputs, pieces.per * width), part.dtype)
    out[:, :numbers] = part.reshape(pieces.inputs, numbers)
    return out.reshape(pieces.inputs * pieces.per, width)


def begin(pieces: Pieces, chip: int, cut: Array) -> Array:
    """[chunk, width]: what a chip holds of every chunk before the first slot."""
    take = pieces.take[chip]
    return np.asarray(np.where((take >= 0)[:, None], cut[np.maximum(take, 0)], cut.dtype.type(0)))


def end(pieces: Pieces, chip: int, cut: Array, held: Array, shape: tuple[int, ...]) -> Array:
    """A chip's output, from its cut input of this shape and what it holds of every chunk in the end."""
    give, numbers = pieces.give[chip], pieces.row(shape)
    out = np.zeros((len(give), cut.shape[1]), cut.dtype)
    out[give >= 0] = held[give[give >= 0]]
    out[give < 0] = cut[-1 - give[give < 0]]
    return out.reshape(pieces.outputs, -1)[:, :numbers].reshape(pieces.shape(shape))


def _turn(owner: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """The number of each chunk among those of its owner."""
    order = np.argsort(owner, kind="stable")
    first = np.searchsorted(owner[order], owner[order])
    turn = np.empty(len(owner), np.int64)
    turn[order] = np.arange(len(owner)) - first
    return turn
