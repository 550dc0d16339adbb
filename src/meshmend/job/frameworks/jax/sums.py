"""Adds up lanes of JAX on their device.

Leaves are kept apart until there is a message to be made: with one lane, the sum is what the lane returned, and in a
world of one no number is ever copied.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from meshmend.job.frameworks.device import DeviceAccumulator, Fetch
from meshmend.job.frameworks.jax import host, wires
from meshmend.job.frameworks.jax.exact import ExactWire
from meshmend.job.frameworks.jax.tree import leaves_of
from meshmend.job.frameworks.packed import PackedLanes
from meshmend.job.reduction.base import Reduction
from meshmend.job.reduction.packing import DevicePart, DeviceTotal


class JaxSums(DeviceAccumulator):
    """The lanes of one worker."""

    def __init__(self, kind: type[Reduction], tree: Any, lanes: int) -> None:
        leaves = arrays_of(tree)
        super().__init__(kind, leaves, lanes)
        self._shape = jax.tree_util.tree_structure(tree)
        self._place = host.Destination(next((leaf for _, leaf in leaves if isinstance(leaf, jax.Array)), None))
        self._types = [jax_type(leaf.dtype) for leaf in self.layout.leaves]
        self._lanes = 0
        self._sums: Any = None
        self._largest: Any = None
        self._all_finite: Any = None
        """Whether a total has neither NaN nor Inf; None if that has to be checked leaf by leaf."""
        on_host = [number for number, (_, leaf) in enumerate(leaves) if not isinstance(leaf, jax.Array)]
        self._packed = PackedLanes(self.reduction, self.layout, on_host)
        self._rooms = wires.Rooms(self.layout, self._place)
        self._made: list[Any] = []
        """Arrays that the sums of this round go to."""
        self._targets: dict[int, int] = {}
        """Where those are, once they are there."""
        self._exact: ExactWire | None = None
        self._wire = wires.wire_of(tuple(self.layout.leaves), packs=self.reduction.head > 0)
        if self.reduction.grid is not None:
            self._exact = ExactWire(self.layout, self.reduction.grid, self._place)

    def warm(self, tree: Any, *, packed: bool) -> None:
        """A newcomer, and a worker that takes over lanes of a dead one, would compile it while all others wait."""
        if packed:
            host.wait_for(self._rooms.made())
            return
        for first in (True, False, False):  # the second lane has a program of its own
            self.accumulate(tree, None, first=first)
        part = self.part()
        host.wait_for(self._wire.split(part) if self._exact is None else part)
        self.release()

    def accumulate(self, tree: Any, buffer: Any, *, first: bool) -> None:
        """Add one lane; the device does it when it gets there."""
        found = arrays_of(tree)
        self.layout.match(found)
        leaves = [leaf for _, leaf in found]
        self._lanes = 1 if first else self._lanes + 1
        if self._whole:
            before = np.zeros(len(self._whole), np.float32) if first else self._largest
            self._largest = wires.largest([leaves[number] for number in self._whole], before)
        if self._packed.takes(buffer):
            self._pack(buffer, leaves, first=first)
            return
        if self._exact is not None:
            per_unit = self._exact.grid.factors[0]
            before = () if first else self._sums
            self._sums = (self._exact.first if first else self._exact.add_in_place)(*before, leaves, per_unit)
        elif first:
            self._sums = _widened(leaves)
        else:
            # The first lane's arrays belong to the user; later sums are ours alone.
            add = wires.add if self._lanes == 2 else wires.add_in_place
            self._sums = add(self._sums, leaves)

    def _pack(self, part: DevicePart, leaves: list[Any], *, first: bool) -> None:
        """Have one lane packed where others see it."""
        self._packed.begin(part)
        there = [number for number, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
        for number in {*range(len(leaves))} - {*there}:
            self._packed.put(number, leaves[number])
        arrays = _widened([leaves[number] for number in there])
        host.await_on(part.stream, arrays)
        addresses = {number: host.pointer(array) for number, array in zip(there, arrays, strict=True)}
        self._packed.pack(part, arrays, addresses, first=first)

    def part(self) -> Any:
        """The message without its footer, as one array on the device."""
        return self._wire.flat(self._sums) if self._exact is None else self._exact.flat(*self._sums)

    def export(self, buffer: Any) -> None:
        """Copy the message to the host, or to device memory that workers share, in one piece."""
        if self._packed.used:
            self._made, self._targets = self._rooms.made(), {}  # now, while the device still computes
            return
        part = self.part()
        if isinstance(buffer, np.ndarray):
            np.copyto(buffer, host.fetch(part))
        else:
            buffer.fill(part.block_until_ready())

    def brought(self) -> None:
        """List where sums go."""
        if self._made and not self._targets:
            self._list()

    def _list(self) -> None:
        host.wait_for(self._made)
        self._targets = {number: host.pointer(array) for number, array in enumerate(self._made)}

    def sums(self, total: Any, *, check: bool) -> list[Any] | tuple[int, ...] | None:
        """The leaves of a total; one that numpy or JAX holds, in device memory, or this worker's own."""
        if isinstance(total, DeviceTotal):
            if self._packed.used:
                return self._unpacked(total, check=check)
            # A view of device memory that workers share: it will get another total, and gradients may be kept.
            total = jnp.array(jnp.asarray(total.flat()), copy=True)
        if total is not self:
            total = total[: self.reduction.size]
        if self._exact is not None:
            return self._exact_sums(self._exact, total)
        self._all_finite = None
        if total is self:
            return list(self._wire.rounded(self._sums))
        total = self._uploaded(total)
        if check and not self.reduction.head and not self._narrow:
            self._all_finite = wires.all_finite(total)
            self._all_finite.copy_to_host_async()
        return list(self._wire.split(total))

    def _unpacked(self, total: DeviceTotal, *, check: bool) -> list[Any] | tuple[int, ...] | None:
        if not self._made:
            self._made = self._rooms.made()
        if not self._targets:
            self._list()
        made, addresses = self._made, self._targets
        self._made, self._targets = [], {}
        against = self._packed.unpack(total, addresses, check=check, stream=None)
        self.checked = check
        return made if against == () else against

    def _exact_sums(self, wire: ExactWire, total: Any) -> list[Any] | tuple[int, ...] | None:
        if total is self:
            whole, notes = self._sums
        else:
            whole, notes = wire.opened(self._uploaded(total))
        unit, judged = wire.grid.factors[1], wire.grid.judge_begun(notes)
        values = list(wire.values(whole, unit))  # most rounds are good: the device need not wait for the host
        against = judged()
        return values if against is None else against.bad or None

    def _uploaded(self, total: Any) -> Any:
        """Return a total on the device; unchanged if it is already there."""
        return self._place.upload_flat(total) if isinstance(total, np.ndarray) else jnp.asarray(total)

    def release(self) -> None:
        """The arrays may be donated, and their memory used again."""
        self._sums = None
        self._made, self._targets = [], {}

    def finite(self, sums: list[Any]) -> npt.NDArray[np.bool_]:
        """Return one small array for all leaves; none if one check of the whole total was enough."""
        if self._all_finite is not None and bool(self._all_finite):
            return np.ones(len(sums), bool)
        narrow = tuple((number, self.layout.leaves[number].dtype) for number in self._narrow)
        return np.asarray(wires.finite(sums, narrow))

    def spans(self, sums: list[Any]) -> Fetch:
        """One small array, fetched later."""
        found = wires.spans(self._largest, [sums[number] for number in self._whole])
        found.copy_to_host_async()
        return lambda: np.asarray(found)

    def rebuilt(self, sums: list[Any]) -> Any:
        """The tree, in the first lane's types as far as JAX has them."""
        types = zip(sums, self._types, strict=True)
        found = [one if one.dtype == kind else one.astype(kind) for one, kind in types]
        return jax.tree_util.tree_unflatten(self._shape, found)


def _widened(leaves: list[Any]) -> list[Any]:
    """Leaves as float32 on the device; those that are already, as they are."""
    other = [number for number, leaf in enumerate(leaves) if leaf.dtype != jnp.float32]
    for number, leaf in zip(other, wires.widened([leaves[n] for n in other]) if other else (), strict=True):
        leaves[number] = leaf
    return leaves


def arrays_of(tree: Any) -> list[tuple[str, Any]]:
    """The leaves of a lane; numbers of Python and arrays of numpy go to the device as they are."""
    return [(name, leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)) for name, leaf in leaves_of(tree)]


def jax_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return JAX's type for a numpy type: 64 bits only if that is turned on."""
    wide = dtype.kind in "iuf" and dtype.itemsize == 8 and not jax.config.jax_enable_x64  # type: ignore[attr-defined, unused-ignore]
    return np.dtype(f"{dtype.kind}4") if wide else dtype
