"""Exact sums of leaves that are spread over several devices: the arithmetic of `reduction/exact.py`, bit for bit.

A block is 1024 neighbours of a whole leaf, so its numbers may be on several devices. Each device computes the maximum
of its numbers, and the devices exchange these: one number per block is all that they exchange.

    a shard in rows       numbers that are neighbours in the shard and in the whole, and of one block
                          │ n n n … n │  block 0
                          │ n n n … n │  block 3        `places` says which

The host judges rounds: notes come to it with every message, and are a hundredth of that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshmend.job.frameworks.jax.exact import magnitudes, notes_of, rounded
from meshmend.job.frameworks.jax.shards import ANYWHERE, DeviceGroup, Spread
from meshmend.job.reduction.base import Flat
from meshmend.job.reduction.exact import BLOCK, Exact, Wire
from meshmend.job.reduction.layout import Layout


class ExactShards:
    """The sums of one group's leaves as integers on the grid, and their notes."""

    def __init__(self, group: DeviceGroup, layout: Layout, exact: Exact) -> None:
        self.group, self.exact = group, exact
        self.blocks = np.flatnonzero(np.isin(exact.leaf_of, group.numbers))
        """The group's blocks: of all that there are, in their order."""
        self._counts = [-(-layout.leaves[number].size // BLOCK) for number in group.numbers]
        self._rows = [_row(spread) for spread in group.spreads]
        self._begins = group.begins([(1, row) for row in self._rows])
        specs, here = group.specs, group.each
        self._first = group.program(self._lane, (specs, ANYWHERE, here), (specs, ANYWHERE))
        self._add = group.program(
            self._more, (specs, ANYWHERE, specs, ANYWHERE, here), (specs, ANYWHERE), donate=(0, 1)
        )
        self._values = group.program(self._floats, (specs, ANYWHERE, here), specs)
        self._known: Any = None
        self._unit = exact.factors[1]
        self.sums: list[Any] = []
        self._notes: Any = None

    def add(self, leaves: list[Any], *, first: bool) -> None:
        """One more lane."""
        if self._known is not self.exact.level:
            self._known, self._per_unit = self.exact.level, self.group.whole(self.exact.factors[0][self.blocks])
        if first:
            self.sums, self._notes = self._first(leaves, self._per_unit, self._begins)
        else:
            self.sums, self._notes = self._add(self.sums, self._notes, leaves, self._per_unit, self._begins)

    def notes(self) -> Wire:
        """The notes of all lanes so far; every device has the same."""
        return np.asarray(self._notes.addressable_data(0))

    def lowered(self) -> Callable[[Sequence[Flat]], None]:
        """Begin to copy the integers to the host."""
        return self.group.lowered(self.sums)

    def use_unit(self) -> None:
        """The round that is being finished was done on the grid of this moment."""
        self._unit = self.exact.factors[1]

    def own(self) -> list[Any]:
        """Return the sums of a world of one."""
        return self._off(self.sums)

    def raised(self, places: Sequence[Flat]) -> list[Any]:
        """The sums in a total, on their devices."""
        return self._off(self.group.raised(places))

    def _off(self, sums: Sequence[Any]) -> list[Any]:
        return list(self._values(list(sums), self.group.whole(self._unit[self.blocks]), self._begins))

    # what each device does with its shards

    def _more(self, sums: list[Any], notes: Any, leaves: list[Any], per_unit: Any, begins: Any) -> Any:
        units, more = self._lane(leaves, per_unit, begins)
        return [mine + one for mine, one in zip(sums, units, strict=True)], notes + more

    def _lane(self, leaves: list[Any], per_unit: Any, begins: Any) -> tuple[list[Any], Any]:
        rows = [self._in_rows(leaf.astype(jnp.float32), at) for at, leaf in enumerate(leaves)]
        blocks = [self._blocks(begins, at) for at in range(len(leaves))]
        tops = []
        for values, block, count in zip(rows, blocks, self._counts, strict=True):
            top = magnitudes(values).max(axis=1)
            if block is not None:
                top = jax.ops.segment_max(top, block, count, indices_are_sorted=True)
            tops.append(jnp.maximum(top, 0))  # less than nothing is what a block has that is not here at all
        top = jax.lax.pmax(jnp.concatenate(tops), self.group.axes)  # type: ignore[no-untyped-call]
        units = []
        for at, (values, block) in enumerate(zip(rows, blocks, strict=True)):
            highest, factor = (_of_rows(self._part(one, at), block) for one in (top, per_unit))
            units.append(self._from_rows(rounded(values, highest, factor), at))
        return units, notes_of(top, *self.exact.digits)

    def _floats(self, sums: list[Any], unit: Any, begins: Any) -> list[Any]:
        """From integers back to float32: rounded once, to nearest even."""
        out = []
        for at, one in enumerate(sums):
            factor = _of_rows(self._part(unit, at), self._blocks(begins, at))
            out.append(self._from_rows(self._in_rows(one, at).astype(jnp.float32) * factor[:, None], at))
        return out

    def _blocks(self, begins: Any, at: int) -> Any:
        """The block of each row of a leaf; None where row after row is a block."""
        spread, row = self.group.spreads[at], self._rows[at]
        if spread.last is None:
            return None
        return (spread.places(begins[0, at], (1, row)) // np.uint32(BLOCK // row)).astype(jnp.int32)

    def _part(self, values: Any, at: int) -> Any:
        """Of a value for each block, those of one leaf."""
        begin = sum(self._counts[:at])
        return values[begin : begin + self._counts[at]]

    def _in_rows(self, leaf: Any, at: int) -> Any:
        flat, row = leaf.reshape(-1), self._rows[at]
        return jnp.pad(flat, (0, -len(flat) % row)).reshape(-1, row)

    def _from_rows(self, rows: Any, at: int) -> Any:
        local = self.group.spreads[at].local
        return rows.reshape(-1)[: math.prod(local)].reshape(local)


def _row(spread: Spread) -> int:
    """How many numbers a row has: whole leaves are filled up to whole blocks."""
    return BLOCK if spread.last is None else math.gcd(spread.run, BLOCK)


def _of_rows(values: Any, block: Any) -> Any:
    return values if block is None else values[block]
