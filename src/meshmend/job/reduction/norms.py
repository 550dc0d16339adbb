"""Norms of whole tensors, with the same bits for any number of workers and any slicing.

LARS, LAMB and clipping by the global norm need sums of squares over tensors of which each member holds a few slices.
Floating-point sums depend on their order, so the order is fixed, by the blocks of the exact mode:

    within a block   by halves: the first 512 numbers plus the last 512, then 256 plus 256, … A short block counts as
                     one that ends with zeros.
    over blocks      one after another, in the order of the state; a tensor is some blocks, the state is all of them

No slice divides a block, so the sums of blocks are the same on every holder: one holder gives each of them out, like
weights, and no member adds up what others have added. They are 8 bytes for 1,024 numbers.

Squares of float32 are exact in float64, and an addition of float64 is the same on every machine. A device without
float64, or a compiler that contracts a product and a sum, needs another definition: this is the host's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.job.reduction.exact import BLOCK

Floats = npt.NDArray[np.float32]
Sums = npt.NDArray[np.float64]

TOGETHER = 256
"""Blocks squared at a time: they stay in the processor's cache."""


@dataclass(frozen=True)
class Norm:
    """The norm of an array that is cut into slices, as the update of one slice gets it."""

    all: np.float32
    """Of the whole."""
    tensor: Floats
    """For each number of the slice, of the tensor that it belongs to."""


class Blocks:
    """The blocks of a state, of which each belongs to one leaf."""

    def __init__(self, leaves: Sequence[int], block: int = BLOCK) -> None:
        if block < 1 or block & (block - 1):
            raise ValueError(f"a block of {block} numbers was given: a power of two is expected, to be halved")
        self.block = block
        counts = [-(-size // block) for size in leaves]
        ends = np.cumsum([0, *leaves])
        begins = [np.arange(end - size, end, block) for end, size in zip(ends[1:], leaves, strict=True)]
        self.bounds = np.concatenate([*begins, ends[-1:]]).astype(np.int64)
        """Where each block begins in the flat state, and where the last one ends."""
        self.of_leaf = np.cumsum([0, *counts])
        """Each leaf's first block, and the end of the last one."""

    @property
    def count(self) -> int:
        """How many blocks there are."""
        return len(self.bounds) - 1

    def squares(self, values: npt.NDArray[Any], first: int = 0) -> Sums:
        """Return the sum of squares of each block of a range of the state that begins with block `first`."""
        begin = self.bounds[first]
        last = int(np.searchsorted(self.bounds, begin + len(values)))
        if self.bounds[last] != begin + len(values):
            raise ValueError(f"{len(values)} numbers from block {first} on were given: they must be whole blocks")
        bounds = self.bounds[first : last + 1] - begin
        out = np.empty(last - first)
        whole = np.diff(bounds) == self.block
        for start, end in _runs(whole):
            if not whole[start]:  # its last numbers are missing
                for place in range(start, end):
                    padded = np.zeros((1, self.block))
                    padded[0, : bounds[place + 1] - bounds[place]] = values[bounds[place] : bounds[place + 1]]
                    out[place] = _halved(padded)[0]
                continue
            for some in range(start, end, TOGETHER):
                stop = min(some + TOGETHER, end)
                rows = values[bounds[some] : bounds[stop]].reshape(-1, self.block)
                out[some:stop] = _halved(rows.astype(np.float64))
        return out

    def by_leaf(self, squares: Sums) -> Sums:
        """The sum of squares of each leaf, from those of all blocks."""
        if len(squares) != self.count:
            raise ValueError(f"sums of {len(squares)} blocks were given, but the state has {self.count}")
        return np.array([_in_order(squares[first:last]) for first, last in pairwise(self.of_leaf)], np.float64)

    def in_all(self, squares: Sums) -> float:
        """The sum of squares of the whole state, from those of all blocks."""
        if len(squares) != self.count:
            raise ValueError(f"sums of {len(squares)} blocks were given, but the state has {self.count}")
        return _in_order(squares)


def clipping(norm: np.float32, most: float) -> np.float32:
    """Return the factor that scales a gradient with this norm down to a norm of `most`; 1 if it is below."""
    return np.float32(1.0) if norm <= most else np.float32(most) / norm


def trust_ratio(weights: Floats, step: Floats, coefficient: float = 1.0) -> Floats:
    """The factors of steps in LARS and LAMB, from the norms of the weights and of the step of each one's tensor.

    1 where either is 0, as in You et al., Large batch optimization for deep learning (arXiv 1904.00962).
    """
    none = (weights == 0) | (step == 0)
    return np.where(none, np.float32(1), np.float32(coefficient) * weights / np.where(none, np.float32(1), step))


def _halved(values: Sums) -> Sums:
    """The sum of the squares of each row, by halves."""
    np.multiply(values, values, out=values)
    width = values.shape[1]
    while width > 1:
        width //= 2
        values[:, :width] += values[:, width : 2 * width]
    return values[:, 0]


def _in_order(sums: Sums) -> float:
    """Add one after another: numpy's `sum` uses another order for many numbers."""
    return float(np.add.accumulate(sums)[-1]) if len(sums) else 0.0


def _runs(flags: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Where neighbouring flags are alike."""
    edges = np.flatnonzero(np.diff(flags)) + 1
    return list(pairwise([0, *edges.tolist(), len(flags)])) if len(flags) else []
