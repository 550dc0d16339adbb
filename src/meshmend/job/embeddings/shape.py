"""Tables as one long list of rows, cut into slices: a fixed number of stretches, the same for any number of workers.

    tables   │ 0: sites            │ 1: ads       │ 2 … 25
    rows     │ 0 1 2 …             │ …            │ …              of all tables, one after another
    slices   │ 0         │ 1         │ 2         │ …              as many rows each, give or take one

A row is `width` weights, followed by what the optimizer remembers of it. At the beginning it follows from the seed and
its own number alone, so that anybody can make it and nobody has to ask for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.errors import JobError

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

SLICES = 256
"""So many are spread evenly by chance alone: with 4 workers and one buddy the largest share is about 0.53. A lane reads
from most of them, so more would cost time."""
FEWEST = 16
"""Rows of a slice, at least."""
MOST_ROWS = 2**31 - 1
"""Row numbers travel as 32-bit integers."""


@dataclass(frozen=True)
class Shape:
    """How many rows each table has, how wide they are, and what they are at the beginning."""

    rows: tuple[int, ...]
    width: int
    memory: int = 0
    """Numbers that the optimizer remembers of each row."""
    seed: int = 0
    scale: float | None = None
    """First weights lie between -scale and scale; None: 1/sqrt(n) for a table of n rows, as DLRM has it."""

    def __post_init__(self) -> None:
        if not self.rows or min(self.rows) < 1 or sum(self.rows) > MOST_ROWS:
            raise JobError(
                f"tables of {list(self.rows)} rows: give at least one table, each with at least one row, and at most "
                f"{MOST_ROWS} rows in all"
            )
        if self.width < 1:
            raise JobError(f"rows of width {self.width}: give at least 1")

    @cached_property
    def begins(self) -> Ids:
        """The first row of each table, and the end of the last."""
        return np.cumsum([0, *self.rows]).astype(np.int64)

    @cached_property
    def bounds(self) -> Ids:
        """The first row of each slice, and the end of the last."""
        every = int(self.begins[-1])
        slices = max(1, min(SLICES, every // FEWEST))
        return np.arange(slices + 1, dtype=np.int64) * every // slices

    @property
    def slices(self) -> int:
        """How many there are."""
        return len(self.bounds) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of one copy of everything."""
        return int(self.begins[-1]) * (self.width + self.memory) * 4

    def numbers(self, ids: Any) -> Ids:
        """The rows that these entries of tables are: the last axis has an entry of each table."""
        found = np.asarray(ids)
        if found.dtype.kind not in "iu" or found.ndim < 1 or found.shape[-1] != len(self.rows):
            raise JobError(
                f"got ids of shape {found.shape} and type {found.dtype} for {len(self.rows)} tables: give integers, "
                "with one column per table"
            )
        low, high = found.min(axis=tuple(range(found.ndim - 1)), initial=0), np.array(self.rows)
        wrong = (low < 0) | (found.max(axis=tuple(range(found.ndim - 1)), initial=0) >= high)
        if wrong.any():
            table = int(np.flatnonzero(wrong)[0])
            column = found[..., table]
            raise JobError(
                f"got ids from {column.min()} to {column.max()} for table {table}, which has rows 0 to "
                f"{self.rows[table] - 1}: hash or clip them first"
            )
        rows: Ids = found.astype(np.int64) + self.begins[:-1]
        return rows

    def first(self, rows: Ids) -> Floats:
        """These rows as they are at the beginning: what the optimizer remembers is 0."""
        made = np.zeros((len(rows), self.width + self.memory), np.float32)
        table = np.searchsorted(self.begins, rows, side="right") - 1
        scale = (
            1 / np.sqrt(np.array(self.rows, np.float64)) if self.scale is None else np.full(len(self.rows), self.scale)
        )
        place = rows[:, None].astype(np.uint64) * np.uint64(self.width) + np.arange(self.width, dtype=np.uint64)
        uniform = (_mixed(place + _mixed(np.uint64(self.seed) + GOLDEN)) >> np.uint64(40)).astype(
            np.float64
        ) / 2**23 - 1
        made[:, : self.width] = uniform * scale[table][:, None]
        return made


GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mixed(number: Any) -> Any:
    """One of 2**64 numbers to another, as in `sharding/placement.py`: any number of a SplitMix64 generator."""
    with np.errstate(over="ignore"):
        number = number * GOLDEN
        number = (number ^ number >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        number = (number ^ number >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return number ^ number >> np.uint64(31)


def stretches(rows: Ids, bounds: Sequence[int] | Ids) -> tuple[Ids, list[tuple[int, slice]]]:
    """An order that sorts rows (equal ones stay in theirs), and for each slice that has some, where they are in it."""
    order = np.argsort(rows, kind="stable")
    ends = np.searchsorted(rows[order], bounds)
    return order, [(n, slice(ends[n], ends[n + 1])) for n in np.flatnonzero(np.diff(ends)).tolist()]
