"""What a courier sees of a worker that holds slices (`job/slices/holder.py`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from meshmend.job.courier.mpi import Bytes, WorkerPort
from meshmend.job.protocol import Total
from meshmend.job.transport.base import Buffers, Hello

Wire = npt.NDArray[np.generic]
Floats = npt.NDArray[np.float32]
Sums = npt.NDArray[np.float64]


class HolderPort(WorkerPort, Protocol):
    """Its messages, its weights and its slices."""

    @property
    def bounds(self) -> Sequence[int]:
        """Where each slice begins in the flat state."""

    @property
    def stretches(self) -> Sequence[int]:
        """The same in a message; one that holds no gradients has no slices."""

    @property
    def rest(self) -> Wire:
        """What everybody needs of the part: the notes, and the footer."""

    def measure(self, round: int, stage: int) -> tuple[Sums, Sums]:
        """The sums of squares of the slices held here, with 0 for the others, and where those of all slices go."""

    def update(self, round: int, slices: Collection[int]) -> None:
        """Have slices updated."""

    def digests(self) -> dict[int, tuple[int, int]]:
        """Of the slices held here."""

    def agree(self, digests: dict[int, tuple[int, int]]) -> None:
        """All holders have these."""

    def weights(self, number: int) -> Floats:
        """Of a slice that is held here."""

    def receive(self, number: int, weights: Floats) -> None:
        """Take the new weights of a slice."""

    def gives(self, slices: Collection[int]) -> None:
        """The slices that are given out from here in this round."""

    def add(self, round: int, slices: Collection[int], parts: Sequence[Buffers]) -> Total:
        """Add up these slices, and what all need, of parts on this host; what the footer says."""

    def copy_weights(self, givers: Mapping[int, Hello]) -> None:
        """Take the new weights of these slices from members of this host."""

    def copies_of(self, slices: Collection[int], look: Callable[[], None]) -> dict[int, Bytes]:
        """Copies of slices, for other holders; `look` raises if a member has died meanwhile."""

    def drop_copies(self) -> None:
        """All members have the copies that were made for them."""

    def fill_from(self, number: int, member: Hello, look: Callable[[], None]) -> None:
        """Hold a slice from now on whose copy a member of this host has made; `look` as above."""

    def fill(self, number: int, copy: Bytes, look: Callable[[], None]) -> None:
        """Hold a slice from now on; `look` as above."""
