"""Which tensors a slice has numbers of: it is a stretch of the flat state, and may begin and end within a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Tensor = tuple[str, tuple[int, ...]]
"""What a tensor of the state is called, and its shape."""


@dataclass(frozen=True)
class Piece:
    """Some numbers of one tensor."""

    leaf: int
    """Which tensor, in the order of the state."""
    name: str
    shape: tuple[int, ...]
    """Of the whole tensor."""
    numbers: slice
    """Where they are in the slice."""

    @property
    def whole(self) -> bool:
        """Whether these are all numbers of the tensor."""
        size = int(np.prod(self.shape, dtype=np.int64))
        return bool(self.numbers.stop - self.numbers.start == size)


@dataclass(frozen=True)
class Pieces:
    """A slice, tensor by tensor."""

    pieces: tuple[Piece, ...]

    def spread(self, by_leaf: Sequence[Any] | npt.NDArray[Any]) -> Floats:
        """For each number of the slice, what the tensor that it belongs to has in this list of all tensors."""
        found = [np.float32(by_leaf[piece.leaf]) for piece in self.pieces]
        return np.repeat(
            np.array(found, np.float32), [piece.numbers.stop - piece.numbers.start for piece in self.pieces]
        )

    @property
    def matrices(self) -> npt.NDArray[np.bool_]:
        """For each number, whether its tensor has two dimensions or more: biases and scales have one."""
        sizes = [piece.numbers.stop - piece.numbers.start for piece in self.pieces]
        return np.repeat([len(piece.shape) > 1 for piece in self.pieces], sizes)


def pieces_of(tensors: Sequence[Tensor], begin: int, end: int) -> Pieces:
    """The pieces of tensors that lie one after another, from one number to another."""
    sizes = [int(np.prod(shape, dtype=np.int64)) for _, shape in tensors]
    ends = np.cumsum(sizes)
    found, leaf = [], int(np.searchsorted(ends, begin, side="right"))
    while leaf < len(sizes) and ends[leaf] - sizes[leaf] < end:
        low, high = max(begin, int(ends[leaf]) - sizes[leaf]), min(end, int(ends[leaf]))
        if low < high:
            found.append(Piece(leaf, *tensors[leaf], slice(low - begin, high - begin)))
        leaf += 1
    return Pieces(tuple(found))
