"""The last numbers of every message: who counted which lane, and whose state has which digest.

    │ gradients and metrics, leaf after leaf │ a count per lane │ a digest per rank, in pieces │ leaving │

The footer rides in the same message and in the same type of number as the gradients, so its values are small whole
numbers that every reduction adds exactly: a digest of 48 bits is three pieces of 16, and only its own rank writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.job.protocol import Total

PIECES = 3
ONCE = 8192
"""A lane counted once by rank r is ONCE + r, so that the sum shows both how often and, if once, by whom."""


@dataclass(frozen=True)
class Footer:
    """The last numbers of every message."""

    lanes: int
    ranks: int

    @property
    def size(self) -> int:
        """Numbers in the footer."""
        return self.lanes + PIECES * self.ranks + 1

    def write(self, buffer: npt.NDArray[Any], lanes: Sequence[int], rank: int, digest: int, leaving: bool) -> None:
        """Fill in one member's footer."""
        tail = buffer[len(buffer) - self.size :]
        tail[:] = 0
        tail[list(lanes)] = ONCE + rank
        for piece in range(PIECES):
            tail[self.lanes + PIECES * rank + piece] = digest >> (16 * piece) & 0xFFFF
        # A digest of 0 would look like an empty rank.
        tail[self.lanes + PIECES * rank] += 65536
        tail[-1] = leaving

    def read(self, buffer: npt.NDArray[Any]) -> Total:
        """What all members' footers add up to."""
        tail = buffer[len(buffer) - self.size :]
        pieces = tail[self.lanes : -1].reshape(self.ranks, PIECES).astype(np.int64)
        digests = {
            rank: int(sum(int(value) << (16 * piece) for piece, value in enumerate(row)))
            for rank, row in enumerate(pieces)
            if row[0]
        }
        counts, by = np.divmod(tail[: self.lanes].astype(np.int64), ONCE)
        return Total(counts.tolist(), digests, int(tail[-1]), by.tolist())
