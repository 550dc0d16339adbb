"""Arrays on several devices of one worker, and programs that never move a number from one device to another.

    the whole array          its shards                 in memory, numbers that follow one another in both are a *run*
    │ 0 1 │ 2 3 │            │ 0 1 │   │ 2 3 │
    │ 4 5 │ 6 7 │            │ 4 5 │   │ 6 7 │          runs of 2: 0 1, 4 5 on one device; 2 3, 6 7 on the other

Sums and digests identify a number by its place in the whole array, so that they are the same however the array is
sharded. A program sees one shard and where it begins: `Spread.places` says where its numbers belong.

The leaves of a tree need not be on the same devices (the stages of a pipeline are not). Leaves that are form a
`DeviceGroup`, with its own programs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding

from meshmend.job.frameworks.jax import host

Box = tuple[slice, ...]
PartitionSpec: Any = jax.sharding.PartitionSpec
ANYWHERE = PartitionSpec()
"""The same on all devices."""


@dataclass(frozen=True, eq=False)
class Spread:
    """How one array is laid out on the devices of its group."""

    shape: tuple[int, ...]
    sharding: Any
    """The user's."""
    held: NamedSharding
    """The sharding in which programs take it: another one if the user's does not use the group's mesh."""
    boxes: tuple[Box, ...]
    """What each device holds, in the order of the mesh."""

    @classmethod
    def of(cls, shape: tuple[int, ...], sharding: Any, mesh: Mesh) -> Spread:
        """An array of this shape and sharding, on all devices of a mesh."""
        found = sharding.devices_indices_map(shape)
        boxes = [_box(found[device], shape) for device in mesh.devices.flat]
        if isinstance(sharding, NamedSharding) and sharding.mesh == mesh:
            held = sharding
        else:
            held = NamedSharding(mesh, ANYWHERE if sharding.is_fully_replicated else PartitionSpec(mesh.axis_names))
        return cls(shape, sharding, held, tuple(boxes))

    @cached_property
    def owners(self) -> list[int]:
        """Devices that between them hold everything once."""
        return [number for number, box in enumerate(self.boxes) if self.boxes.index(box) == number]

    @cached_property
    def local(self) -> tuple[int, ...]:
        """The shape of a shard."""
        return tuple(one.stop - one.start for one in self.boxes[0])

    @cached_property
    def last(self) -> int | None:
        """The last dimension that is cut; None where every device holds the whole array."""
        return max((dim for dim, size in enumerate(self.shape) if self.local[dim] != size), default=None)

    @property
    def run(self) -> int:
        """How many numbers follow one another both in a shard and in the whole."""
        return math.prod(self.local[self.last or 0 :])

    @cached_property
    def strides(self) -> list[int]:
        """By how much the place of a number grows along each dimension of the whole: a multiple of the run."""
        return [math.prod(self.shape[dim + 1 :]) for dim in range(len(self.shape))]

    def begins(self) -> list[int]:
        """The place of the first number of each device's shard."""
        return [sum(one.start * stride for one, stride in zip(box, self.strides, strict=True)) for box in self.boxes]

    def places(self, begin: Any, unit: tuple[int, int]) -> Any:
        """Where the numbers of a shard that begins here belong in the whole, `unit[1]` of them counted as `unit[0]`.

        That count must divide the run.
        """
        at = jax.lax.iota(jnp.uint32, _counted(self.run, unit))
        for dim in reversed(range(self.last or 0)):
            step = np.uint32(_counted(self.strides[dim], unit) & 0xFFFFFFFF)
            at = (jax.lax.iota(jnp.uint32, self.local[dim])[:, None] * step + at[None, :]).reshape(-1)
        return at + begin


@dataclass(frozen=True, eq=False)
class DeviceGroup:
    """Leaves on the same devices, by their numbers, and how each is laid out there."""

    mesh: Mesh
    numbers: tuple[int, ...]
    spreads: tuple[Spread, ...]

    @property
    def axes(self) -> tuple[Any, ...]:
        """The names of all axes of the mesh."""
        return tuple(self.mesh.axis_names)

    @property
    def each(self) -> Any:
        """A row for each device."""
        return PartitionSpec(self.axes)

    @property
    def specs(self) -> list[Any]:
        """How programs take the leaves."""
        return [spread.held.spec for spread in self.spreads]

    def program(self, function: Callable[..., Any], ins: Any, outs: Any, donate: Sequence[int] = ()) -> Any:
        """A program that each device runs on its own shards."""
        mapped = jax.shard_map(function, mesh=self.mesh, in_specs=ins, out_specs=outs, check_vma=False)
        return jax.jit(mapped, donate_argnums=tuple(donate))

    def whole(self, array: npt.NDArray[Any]) -> Any:
        """A small array on all devices."""
        return jax.device_put(np.array(array), NamedSharding(self.mesh, ANYWHERE))

    def rows(self, array: npt.NDArray[Any]) -> Any:
        """An array with a row for each device."""
        return jax.device_put(array, NamedSharding(self.mesh, self.each))

    def begins(self, units: Sequence[tuple[int, int]]) -> Any:
        """For each device a row: where its shard of each leaf begins, counted in the leaf's unit."""
        columns = [
            [_counted(at, unit) & 0xFFFFFFFF for at in spread.begins()]
            for spread, unit in zip(self.spreads, units, strict=True)
        ]
        found = np.array(columns, np.uint32).reshape(len(columns), -1).T
        return self.rows(np.ascontiguousarray(found))

    def taken(self, leaves: Sequence[Any]) -> list[Any]:
        """Return leaves as programs take them; leaves elsewhere, or on the host, are first put where they belong."""
        return [self._taken(leaf, spread) for leaf, spread in zip(leaves, self.spreads, strict=True)]

    def _taken(self, leaf: Any, spread: Spread) -> Any:
        if not isinstance(leaf, jax.Array) or leaf.sharding != spread.sharding:
            leaf = jax.device_put(leaf, spread.sharding)
        if spread.held is spread.sharding:
            return leaf
        pieces = {shard.device: shard.data for shard in leaf.addressable_shards}
        shape = spread.shape
        if not spread.held.is_fully_replicated:
            shape = len(pieces) * spread.local[0], *spread.local[1:]  # the shards, one below the other
        found = [pieces[device] for device in self.mesh.devices.flat]
        return jax.make_array_from_single_device_arrays(shape, spread.held, found)

    def given(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the results of programs in the sharding of the user's arrays: the reverse."""
        return [self._given(array, spread) for array, spread in zip(arrays, self.spreads, strict=True)]

    def _given(self, array: Any, spread: Spread) -> Any:
        if spread.held is spread.sharding:
            return array
        pieces = [shard.data for shard in array.addressable_shards]
        return jax.make_array_from_single_device_arrays(spread.shape, spread.sharding, pieces)

    def lowered(self, arrays: Sequence[Any]) -> Callable[[Sequence[npt.NDArray[Any]]], None]:
        """Begin to copy arrays to the host, shard by shard; what is returned puts them into these flat ones."""
        found = [
            [(spread.boxes[owner], host.begin(array.addressable_data(owner))) for owner in spread.owners]
            for array, spread in zip(arrays, self.spreads, strict=True)
        ]

        def put(places: Sequence[npt.NDArray[Any]]) -> None:
            for place, spread, pieces in zip(places, self.spreads, found, strict=True):
                out = place.reshape(spread.shape)
                for box, fetch in pieces:
                    out[box] = fetch()

        return put

    def raised(self, places: Sequence[npt.NDArray[Any]]) -> list[Any]:
        """Flat arrays of the host on the devices, shard by shard, as programs take them; they may then be changed.

        As in `Place.upload`, accelerators copy before something newer can come back from there.
        """
        copies = self.mesh.devices.flat[0].platform == "cpu"
        shaped = [place.reshape(spread.shape) for place, spread in zip(places, self.spreads, strict=True)]
        return self.taken([np.array(one) if copies else one for one in shaped])


def group_of(leaves: Sequence[Any], numbers: Sequence[int], mesh: Mesh | None = None) -> DeviceGroup:
    """Return these leaves as a group; leaves without a placement are put on all its devices.

    The mesh is that of the first leaf which has one.
    """
    settled = [leaves[number] for number in numbers if is_settled(leaves[number])]
    meshes = (leaf.sharding.mesh for leaf in settled if isinstance(leaf.sharding, NamedSharding))
    found: Any = mesh or next(meshes, None) or line(settled[0].sharding.device_set)
    spreads = []
    for number in numbers:
        leaf = leaves[number]
        sharding = leaf.sharding if is_settled(leaf) else NamedSharding(found, ANYWHERE)
        spreads.append(Spread.of(tuple(np.shape(leaf)), sharding, found))
    return DeviceGroup(found, tuple(numbers), tuple(spreads))


def groups_of(leaves: Sequence[Any], home: Mesh) -> list[DeviceGroup]:
    """Return all leaves, in groups; `home` is the mesh of leaves without a placement, if all are."""
    found: dict[Any, list[int]] = {}
    for number, leaf in enumerate(leaves):
        if is_settled(leaf):
            found.setdefault(frozenset(leaf.sharding.device_set), []).append(number)
    free = [number for number, leaf in enumerate(leaves) if not is_settled(leaf)]
    if not found:
        return [group_of(leaves, free, home)]
    largest = max(found, key=len)
    found[largest] = sorted(found[largest] + free)
    return [group_of(leaves, numbers) for numbers in found.values()]


def home_of(leaves: Sequence[Any]) -> Mesh | None:
    """The devices of these leaves if there are several, as a mesh."""
    devices = {device for leaf in leaves if is_settled(leaf) for device in leaf.sharding.device_set}
    return line(devices) if len(devices) > 1 else None


def line(devices: Any) -> Mesh:
    """Devices in a row."""
    return Mesh(np.array(sorted(devices, key=lambda one: one.id)), ("device",))


def is_settled(leaf: Any) -> bool:
    """Whether the user chose the devices of an array; JAX is free to move others."""
    return isinstance(leaf, jax.Array) and bool(getattr(leaf, "committed", True))


def _box(index: Box, shape: tuple[int, ...]) -> Box:
    bounds = (one.indices(size) for one, size in zip(index, shape, strict=True))
    return tuple(slice(begin, end) for begin, end, _ in bounds)


def _counted(numbers: int, unit: tuple[int, int]) -> int:
    return numbers * unit[0] // unit[1]
