"""The gradients of rows in a message: each lane has its own place there, and only who computes the lane writes to it.

    │ gradients of the state │ lane 0: row row … │ its gradients │ lane 1 … │ digests of slices │ contacts │ footer │

So the size of a message depends on the batch and not on the tables, and "adding up" parts puts the lanes' places
together: everything else there is 0. All workers have the same rows and gradients in the order of the lanes, whoever
computed them. A holder adds up those of a row in that order: the same bits for any number of workers.

Behind them, every holder of a slice says in its own column what the slice is, as a digest; and where a run has several
hosts, every rank says where it can be asked for rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshmend.errors import JobError
from meshmend.job.embeddings.contacts import PIECES as CONTACT
from meshmend.job.embeddings.contacts import Contact, Contacts
from meshmend.job.embeddings.shape import Floats, Ids
from meshmend.job.frameworks.base import Accumulator
from meshmend.job.reduction.base import Flat, Levels, Reduction, WireFormat
from meshmend.job.reduction.layout import WHOLE

PIECES = 2
"""Numbers of 16 bits that a digest has: small whole numbers, which every reduction adds exactly."""


@dataclass(frozen=True)
class Laned:
    """What a lane has given: a tree to be summed, and gradients of rows."""

    lane: int
    tree: Any
    rows: Ids
    gradients: Floats


@dataclass(frozen=True)
class RowLayout:
    """Where gradients of rows are in a message."""

    begin: int
    """How many numbers come before them."""
    lanes: int
    rows: int
    """Of each lane."""
    width: int
    slices: int
    columns: int
    """Holders of a slice that say what it is."""
    whole: bool
    """Whether the message is of integers: then floats travel as their bits."""
    ranks: int = 0
    """That say where they can be asked for rows: none on one host."""

    @property
    def size(self) -> int:
        """Numbers of a message up to the end of the contacts."""
        return self._contacts + self.ranks * CONTACT

    @property
    def _contacts(self) -> int:
        return self._digests + self.slices * self.columns * PIECES

    @property
    def _digests(self) -> int:
        return self.begin + self.lanes * self.rows * (1 + self.width)

    def clear(self, part: Flat) -> None:
        """Begin a part: nothing of it is here yet."""
        part[self.begin : self.size] = 0

    def write(self, part: Flat, given: Laned) -> None:
        """Put a lane in its place."""
        here = part[self.begin : self._digests].reshape(self.lanes, -1)[given.lane]
        here[: self.rows] = given.rows
        here[self.rows :] = self._sent(given.gradients)

    def read(self, total: Flat) -> tuple[Ids, Floats]:
        """The rows and gradients of all lanes, in their order."""
        every = total[self.begin : self._digests].reshape(self.lanes, -1)
        rows = every[:, : self.rows].astype(np.int64).reshape(-1)
        found = np.ascontiguousarray(every[:, self.rows :])
        return rows, (found.view(np.float32) if self.whole else found).reshape(-1, self.width)

    def say(self, part: Flat, digests: Iterable[tuple[int, int, int]]) -> None:
        """Write digests, each as (slice, column, digest); 0 is none."""
        table = part[self._digests : self._contacts].reshape(self.slices, self.columns, PIECES)
        for number, column, digest in digests:
            if column < self.columns:
                table[number, column] = digest & 0xFFFF, digest >> 16

    def said(self, total: Flat) -> Ids:
        """The digests of all holders, by slice and column."""
        table = total[self._digests : self._contacts].reshape(self.slices, self.columns, PIECES).astype(np.int64)
        found: Ids = table[:, :, 0] + (table[:, :, 1] << 16)
        return found

    def introduce(self, part: Flat, rank: int, contact: Contact) -> None:
        """Write where a rank can be asked."""
        begin = self._contacts + rank * CONTACT
        part[begin : begin + CONTACT] = contact.pieces()

    def introduced(self, total: Flat) -> Ids:
        """The columns of all ranks, for `Contacts.heard`."""
        found: Ids = total[self._contacts : self.size].reshape(self.ranks, CONTACT).astype(np.int64)
        return found

    def _sent(self, gradients: Floats) -> Flat:
        flat = np.ascontiguousarray(gradients).reshape(-1)
        return flat.view(np.int32) if self.whole else flat


class WithRows(Reduction):
    """A reduction of other gradients, with room for those of rows behind them."""

    def __init__(self, inner: Reduction, layout: RowLayout) -> None:
        self.inner, self.rows_at = inner, layout
        self.layout, self.head = inner.layout, inner.head
        self.size, self.dtype = layout.size, inner.dtype  # type: ignore[misc]

    def wire_format(self, footer: int) -> WireFormat:
        """Couriers add it up as they would without."""
        return WireFormat(type(self.inner), self.size + footer, self.head)

    def add(self, buffer: Flat, arrays: Iterable[Flat], *, first: bool) -> None:
        """Add what comes before the rows."""
        self.inner.add(buffer[: self.inner.size], arrays, first=first)

    def finish(self, total: Flat, step: int, rooms: Sequence[Flat | None] = ()) -> list[Flat] | None:
        """Read what comes before the rows."""
        return self.inner.finish(total[: self.inner.size], step, rooms)

    def state(self) -> Levels:
        """Return the inner one's."""
        return self.inner.state()

    def restore(self, state: Levels) -> None:
        """Continue from such a state."""
        self.inner.restore(state)


class RowAccumulator(Accumulator):
    """Adds up the lanes of a job with tables."""

    def __init__(self, inner: Accumulator, layout: RowLayout) -> None:
        super().__init__(WithRows(inner.reduction, layout))
        self.inner, self.row_layout = inner, layout
        self.digests: Iterable[tuple[int, int, int]] = ()
        """What this worker says of its slices with the next part."""
        self.contacts: Contacts | None = None
        """Where it can be asked, on several hosts."""

    def accumulate(self, tree: Any, buffer: Flat, *, first: bool) -> None:
        """Add a lane's tree, and put its rows in their place."""
        if len(tree.rows) != self.row_layout.rows:
            raise JobError(
                f"lane {tree.lane} gave gradients for {len(tree.rows)} rows, but the first lane gave "
                f"{self.row_layout.rows}; give the same number for every lane"
            )
        self.inner.accumulate(tree.tree, buffer[: self.row_layout.begin], first=first)
        if first:
            self.row_layout.clear(buffer)
        self.row_layout.write(buffer, tree)

    def export(self, buffer: Flat) -> None:
        """Write what is not there yet."""
        self.inner.export(buffer[: self.row_layout.begin])
        self.row_layout.say(buffer, self.digests)
        if self.contacts is not None:
            self.row_layout.introduce(buffer, self.contacts.rank, self.contacts.own)

    def finish(self, total: Any, step: int, *, check: bool = False) -> Any | None:
        """Return the sum of the trees; who has tables reads the rest."""
        return self.inner.finish(total[: self.row_layout.begin], step, check=check)


def check_float_rows(rows: int) -> None:
    """Refuse tables whose row numbers a message of floats cannot hold."""
    if rows > WHOLE:
        raise JobError(
            f"tables of {rows} rows are too large for reduction='float', in which row numbers are exact only up to "
            f"{WHOLE}; use mm.Job(reduction='exact')"
        )  # fmt: skip
