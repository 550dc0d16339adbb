"""A schedule as arrays for XLA devices, and the one loop that runs it: for every collective alike.

The program is a loop over the slots with a permutation between neighbours per way, so its size does not grow with the
schedule. Who sends what is in the tables, which are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from meshmend.mesh import Fabric
from meshmend.mesh.executors import jax_cores
from meshmend.mesh.executors.slots import HOP, ORDER, moves, neighbours, turns
from meshmend.mesh.schedule import Schedule

AXIS = "chips"
EACH, ALL = PartitionSpec(AXIS), PartitionSpec()  # type: ignore[no-untyped-call]
"""A row on each chip; the same on all chips."""
LINE = 128
"""Numbers in a line of a TPU's tile."""
TILED = 8 * jax_cores.TILE
"""From this width on, chunks are padded to whole tiles, so that cutting and joining them moves nothing: without it XLA
holds the payload three times, in three layouts. In a narrower chunk the padding would weigh more than an eighth."""


@partial(
    jax.tree_util.register_dataclass, data_fields=["send", "land", "copy", "slots"], meta_fields=["mesh", "chunks"]
)
@dataclass(frozen=True, eq=False)
class Tables:
    """A schedule as arrays, of which each device holds its own rows, and what they are made for."""

    send: Any
    land: Any
    copy: Any
    slots: Any
    mesh: Fabric
    chunks: int

    @property
    def spec(self) -> Tables:
        """How they are divided."""
        return Tables(EACH, EACH, EACH, ALL, self.mesh, self.chunks)

    def remade(self, schedule: Schedule, devices: int) -> Tables:
        """Another schedule's, of this size if it fits."""
        return tables_of(schedule, devices, self.send.shape[1])

    def summed(self, flat: jax.Array) -> jax.Array:
        """The sum over the chips: one buffer, cut into chunks of equal width, with the spare row behind them.

        [chunk, line, number in the line]: a TPU's tiles lie in the last two axes, so that each chunk has its own.
        """
        width = -(-flat.size // self.chunks)
        line = min(LINE, width)
        width += -width % (jax_cores.TILE if width >= TILED else line)
        buffer = jnp.pad(flat, (0, (self.chunks + 1) * width - flat.size)).reshape(self.chunks + 1, -1, line)
        return run_slots(buffer, self).ravel()[: flat.size]  # type: ignore[no-any-return]


def tables_of(schedule: Schedule, devices: int, least: int) -> Tables:
    """The tables of a schedule, with room for at least so many slots."""
    slots, live = turns(schedule), len(schedule.mesh.live)
    # Room for other plans: hardly one needs more than a ring that reduces all before it broadcasts. Tables of large
    # meshes would grow too big for that, and get room for four times the slots.
    room = max(least, slots, min(2 * schedule.chunks + 2 * HOP * live, 4 * slots))
    rows = moves(schedule, 1 << (room - 1).bit_length() if room else 1)
    # Both devices of a chip do the same.
    send, land, copy = (np.repeat(table, devices // live, axis=0) for table in rows)
    return Tables(send, land, copy, np.asarray(slots, np.int32), schedule.mesh, schedule.chunks)


def put(mesh: jax.sharding.Mesh, value: Any, spec: PartitionSpec) -> jax.Array:
    """An array on the devices, divided like this."""
    return jax.make_array_from_callback(value.shape, NamedSharding(mesh, spec), lambda index: value[index])


def shape_of(mesh: jax.sharding.Mesh, value: Any, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
    """What stands for it when a program is compiled for devices that are not here."""
    shape: Any = jax.ShapeDtypeStruct
    return shape(value.shape, value.dtype, sharding=NamedSharding(mesh, spec))  # type: ignore[no-any-return]


def run_slots(buffer: jax.Array, tables: Tables) -> Any:
    """[chunk and a spare row behind them, …] after all slots: for use inside `shard_map`."""
    permute: Any = lax.ppermute
    links = neighbours(tables.mesh, lax.axis_size(AXIS) // len(tables.mesh.live))
    ways = [way for way in ORDER if way < len(links) and links[way]]
    spare = tuple(buffer[-1:] for _ in ways)

    def slot(t: Any, held: Any) -> Any:
        buffer, taken, came = held
        send, land, copy = tables.send[0, t], tables.land[0, t], tables.copy[0, t]
        goes = tuple(permute(chunk, AXIS, links[way]) for way, chunk in zip(ways, taken, strict=True))
        # Land first, then take: the other way round XLA copies the whole buffer in every slot.
        for way, chunk in zip(ways, came, strict=True):
            has = lax.dynamic_slice_in_dim(buffer, land[way], 1)
            chunk = jnp.where(copy[way], chunk, has + chunk)
            buffer = lax.dynamic_update_slice_in_dim(buffer, chunk, land[way], 0)
        taken = tuple(lax.dynamic_slice_in_dim(buffer, send[way], 1) for way in ways)
        return buffer, taken, goes

    return lax.fori_loop(0, tables.slots, slot, (buffer, spare, spare))[0]
