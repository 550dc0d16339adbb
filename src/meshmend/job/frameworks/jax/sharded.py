"""Adds up JAX lanes that are spread over several devices of a worker: shard by shard, each on its own device.

Sums have the sharding of the first lane's leaves; if a later lane's differs, JAX moves them. Messages are the same
as everywhere else, whatever the sharding: every shard goes straight between its device and its places in the host's
buffer. So workers need not agree on how they shard, and a sum takes no more of a device than the lane's own shard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh

from meshmend.job.frameworks.device import DeviceAccumulator, Fetch
from meshmend.job.frameworks.jax import wires
from meshmend.job.frameworks.jax.exact_shards import ExactShards
from meshmend.job.frameworks.jax.shards import DeviceGroup, groups_of
from meshmend.job.frameworks.jax.sums import arrays_of, jax_type
from meshmend.job.reduction.base import Flat, Reduction
from meshmend.job.reduction.exact import Wire
from meshmend.job.reduction.layout import Layout
from meshmend.job.reduction.packing import DeviceTotal


class FloatShards:
    """The sums of one group's leaves, in float32; those that travel as bf16 are rounded on the way."""

    def __init__(self, group: DeviceGroup, reduction: Reduction) -> None:
        self.group = group
        specs = group.specs
        halved = [reduction.packs(reduction.layout.leaves[number]) for number in group.numbers]
        self._first = group.program(wires.widened, (specs,), specs)
        self._add = group.program(wires.added, (specs, specs), specs)
        self._add_in_place = group.program(wires.added, (specs, specs), specs, donate=(0,))
        self._packed = group.program(lambda sums: _each(wires.half, sums, halved), (specs,), specs)
        self._opened = group.program(lambda wire: _each(wires.widened_half, wire, halved), (specs,), specs)
        self._halved = any(halved)
        self.sums: list[Any] = []
        self._lanes = 0

    def add(self, leaves: list[Any], *, first: bool) -> None:
        """One more lane."""
        self._lanes = 1 if first else self._lanes + 1
        if first:
            self.sums = leaves if all(leaf.dtype == jnp.float32 for leaf in leaves) else self._first(leaves)
        else:
            # The first lane's arrays belong to the user; later sums are ours alone.
            self.sums = (self._add if self._lanes == 2 else self._add_in_place)(self.sums, leaves)

    def lowered(self) -> Callable[[Sequence[Flat]], None]:
        """Begin to copy the sums to the host."""
        return self.group.lowered(self._packed(self.sums) if self._halved else self.sums)

    def own(self) -> list[Any]:
        """Return the sums of a world of one."""
        return list(self._opened(self._packed(self.sums))) if self._halved else self.sums

    def raised(self, places: Sequence[Flat]) -> list[Any]:
        """The sums in a total, on their devices."""
        found = self.group.raised(places)
        return list(self._opened(found)) if self._halved else found


class ShardedSums(DeviceAccumulator):
    """The lanes of one worker; `home` is where leaves without a placement go."""

    def __init__(self, kind: type[Reduction], tree: Any, lanes: int, home: Mesh) -> None:
        found = arrays_of(tree)
        super().__init__(kind, found, lanes)
        self._shape = jax.tree_util.tree_structure(tree)
        self._types = [jax_type(leaf.dtype) for leaf in self.layout.leaves]
        groups = groups_of([leaf for _, leaf in found], home)
        exact = self.reduction.grid
        self._exact = [] if exact is None else [ExactShards(group, self.layout, exact) for group in groups]
        self._float = [] if exact is not None else [FloatShards(group, self.reduction) for group in groups]
        self._looks = [_Looks(group, self._whole, self._narrow, self.layout) for group in groups]

    @property
    def _wires(self) -> Sequence[FloatShards | ExactShards]:
        return self._exact or self._float

    def accumulate(self, tree: Any, buffer: Flat, *, first: bool) -> None:
        """Add one lane; the devices do it when they get there."""
        del buffer
        found = arrays_of(tree)
        self.layout.match(found)
        leaves = [leaf for _, leaf in found]
        for wire, look in zip(self._wires, self._looks, strict=True):
            mine = wire.group.taken([leaves[number] for number in wire.group.numbers])
            look.lane(mine, first=first)
            wire.add(mine, first=first)

    def export(self, buffer: Any) -> None:
        """Copy every shard to its places in the message."""
        out = buffer if isinstance(buffer, np.ndarray) else np.empty(self.reduction.size, self.reduction.dtype)
        places = list(self.reduction.places(out))
        for put, wire in [(wire.lowered(), wire) for wire in self._wires]:
            put([places[number] for number in wire.group.numbers])
        if self._exact:
            self._notes_of(out)[:] = self._notes()
        if out is not buffer:  # the state is on one device, whose memory workers share
            buffer.fill(jnp.asarray(out).block_until_ready())

    def _notes_of(self, wire: Flat) -> Wire:
        return wire[self.layout.size : self.reduction.size].reshape(len(self._exact[0].exact.level), -1)

    def _notes(self) -> Wire:
        """The notes of this worker's lanes, a row for each block."""
        found = np.zeros((len(self._exact[0].exact.level), self._exact[0].exact.digits[0] + 1), np.int32)
        for wire in self._exact:
            found[wire.blocks] = wire.notes()
        return found

    def sums(self, total: Any, *, check: bool) -> list[Any] | tuple[int, ...] | None:
        """The leaves of a total of the host's, or of this worker's own, as programs take them."""
        del check  # by the caller: each device looks at its shards
        if isinstance(total, DeviceTotal):
            total = np.asarray(jnp.asarray(total.flat()))
        elif total is not self and not isinstance(total, np.ndarray):
            total = np.asarray(jnp.asarray(total[: self.reduction.size]))
        for one in self._exact:
            one.use_unit()  # before the grid moves
        if self._exact:
            against = self._exact[0].exact.judge(self._notes() if total is self else self._notes_of(total))
            if against is not None:
                return against.bad or None
        out: list[Any] = [None] * len(self.layout.leaves)
        places = [] if total is self else list(self.reduction.places(total[: self.reduction.size]))
        for wire in self._wires:
            numbers = wire.group.numbers
            mine = wire.own() if total is self else wire.raised([places[number] for number in numbers])
            for number, one in zip(numbers, mine, strict=True):
                out[number] = one
        return out

    def release(self) -> None:
        """The arrays may be donated, and their memory used again."""
        for wire in self._wires:
            wire.sums = []

    def finite(self, sums: list[Any]) -> npt.NDArray[np.bool_]:
        """Have each device check its shards."""
        out = np.ones(len(sums) + len(self._narrow), bool)
        for look in self._looks:
            mine, narrow = look.finite(sums)
            out[list(look.group.numbers)] = mine
            out[[len(sums) + self._narrow.index(number) for number in look.narrow]] = narrow
        return out

    def spans(self, sums: list[Any]) -> Fetch:
        """A small array for each group, fetched later."""
        begun = [(look, look.spans(sums)) for look in self._looks if look.whole]

        def fetch() -> npt.NDArray[np.float32]:
            out = np.zeros((len(self._whole), 3), np.float32)
            for look, found in begun:
                each = np.asarray(found)  # (devices, leaves, 3)
                rows = [self._whole.index(number) for number in look.whole]
                out[rows] = np.stack([each[..., 0].max(0), each[..., 1].min(0), each[..., 2].max(0)], axis=1)
            return out

        return fetch

    def rebuilt(self, sums: list[Any]) -> Any:
        """The tree, as the first lane's lay, in its types as far as JAX has them."""
        out: list[Any] = [None] * len(sums)
        for wire in self._wires:
            numbers = wire.group.numbers
            kinds = [(sums[number], self._types[number]) for number in numbers]
            mine = [one if one.dtype == kind else one.astype(kind) for one, kind in kinds]
            for number, one in zip(numbers, wire.group.given(mine), strict=True):
                out[number] = one
        return jax.tree_util.tree_unflatten(self._shape, out)


class _Looks:
    """Return each device's result for its shards of one group's leaves: a row per device, combined by the host."""

    def __init__(self, group: DeviceGroup, whole: Sequence[int], narrow: Sequence[int], layout: Layout) -> None:
        self.group = group
        self.whole = [number for number in group.numbers if number in whole]
        self.narrow = [number for number in group.numbers if number in narrow]
        place = {number: at for at, number in enumerate(group.numbers)}
        self._wholes = [place[number] for number in self.whole]
        types = tuple((place[number], layout.leaves[number].dtype) for number in self.narrow)
        some = [group.specs[at] for at in self._wholes]
        self._largest = group.program(
            lambda leaves, before: wires.largest(leaves, before[0])[None], (some, group.each), group.each
        )
        self._spans = group.program(
            lambda largest, sums: wires.spans(largest[0], sums)[None], (group.each, some), group.each
        )
        self._finite = group.program(lambda sums: wires.finite(sums, types)[None], (group.specs,), group.each)
        self._none = group.rows(np.zeros((group.mesh.size, len(self.whole)), np.float32))
        self._seen = self._none

    def lane(self, leaves: Sequence[Any], *, first: bool) -> None:
        """One more lane: keep the largest of each leaf of integers."""
        if self.whole:
            self._seen = self._largest([leaves[at] for at in self._wholes], self._none if first else self._seen)

    def spans(self, sums: Sequence[Any]) -> Any:
        """For each device and leaf of integers: the largest of any lane, the least sum, the largest sum."""
        found = self._spans(self._seen, [sums[number] for number in self.whole])
        found.copy_to_host_async()
        return found

    def finite(self, sums: Sequence[Any]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """For each leaf whether all its sums are finite; then of narrow leaves in their own type."""
        each = np.asarray(self._finite([sums[number] for number in self.group.numbers]), bool)
        found, count = np.logical_and.reduce(each), len(self.group.numbers)
        return found[:count], found[count:]


def _each(function: Callable[[Any], Any], arrays: Sequence[Any], where: Sequence[bool]) -> list[Any]:
    return [function(one) if here else one for one, here in zip(arrays, where, strict=True)]
