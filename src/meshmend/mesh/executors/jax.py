"""Runs a plan on XLA devices: an all-reduce for use inside `shard_map`, over the live devices only.

    reduce = mm.jax.allreduce(plan)                 # jax.devices(), or those given, placed on the plan's mesh
    step = jax.jit(jax.shard_map(train, mesh=reduce.mesh, in_specs=(P(), P("chips"), reduce.spec), out_specs=P(),
                                 check_vma=False))  # train calls reduce(gradients, tables)
    state = step(state, batch, reduce.tables)

The program is one loop over the slots with a permutation between neighbours per way (four, or six in three dimensions),
so its size does not grow with the schedule. Who sends what is in tables, which are arguments: another plan for the same
mesh runs in the program that is compiled.

Where a chip shows two devices (TPU v3, v4, TPU7x), each sums half of the payload (`jax_cores.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding

from meshmend.errors import PlanError
from meshmend.mesh.executors import jax_cores
from meshmend.mesh.executors.base import Executor, require_proof
from meshmend.mesh.executors.jax_collectives import collective as collective
from meshmend.mesh.executors.jax_tables import ALL, AXIS, EACH, Tables, put, shape_of, tables_of
from meshmend.mesh.executors.placement import placed
from meshmend.mesh.executors.slots import HOP
from meshmend.mesh.planners import Plan
from meshmend.mesh.proof import Proof
from meshmend.mesh.schedule import Schedule


class Allreduce(Executor):
    """The all-reduce of one plan over its live devices."""

    def __init__(self, schedule: Schedule, mesh: jax.sharding.Mesh, rows: Any, *, proof: Proof | None = None) -> None:
        super().__init__(schedule, proof)
        self._mesh, self._rows = mesh, rows

    @property
    def mesh(self) -> jax.sharding.Mesh:
        """The live devices, in order of the plan's `mesh.live`, along the axis "chips"."""
        return self._mesh

    @cached_property
    def tables(self) -> Tables:
        """The argument that goes with `spec`: the schedule as arrays; `meshmend.local.allreduce` runs it in numpy."""
        return jax.tree.map(partial(put, self.mesh), self._rows, self.spec)  # type: ignore[no-any-return]

    @property
    def shapes(self) -> Tables:
        """What stands for the tables when a program is compiled for devices that are not here: for `lower`."""
        return jax.tree.map(partial(shape_of, self.mesh), self._rows, self.spec)  # type: ignore[no-any-return]

    @property
    def spec(self) -> Tables:
        """How the tables are divided: an entry for `in_specs`."""
        return self._rows.spec  # type: ignore[no-any-return]

    def __call__(self, tree: Any, tables: Tables) -> Any:
        """The sums over all live devices of an array or a tree of them: for use inside `shard_map`."""
        if (tables.mesh, tables.chunks) != (self._rows.mesh, self._rows.chunks):
            raise PlanError(
                f"tables for {tables.mesh} in {tables.chunks} chunks were given to an all-reduce for "
                f"{self._rows.mesh} in {self._rows.chunks}: give its own, or those of replanned()"
            )
        return _reduced(tree, tables)

    def sum(self, tree: Any) -> Any:
        """The sums over the first axis of each leaf, one row per live device; each gets all of them."""
        for leaf in jax.tree.leaves(tree):
            if np.ndim(leaf) == 0 or len(leaf) != self.mesh.size:
                raise PlanError(
                    f"a leaf of shape {np.shape(leaf)} was given for {self.mesh.size} live devices: "
                    "the first axis has one row per live device"
                )
        return _summing(self.mesh, jax.tree.structure(self.tables))(tree, self.tables)

    def replanned(self, plan: Plan) -> Allreduce:
        """The same with another plan for the same mesh: programs that are compiled take its tables as they are.

        Only a plan that needs more slots than the tables hold is compiled again.
        """
        if plan.mesh != self.schedule.mesh:
            raise PlanError(
                f"a plan for {plan.mesh} cannot replace one for {self.schedule.mesh}: "
                "the live chips and links differ, so call allreduce(plan, devices) again"
            )
        schedule = plan.schedule(self.schedule.chunks, hop=HOP, even=True)
        proof = require_proof(schedule)  # before anything goes to a device
        return Allreduce(schedule, self.mesh, self._rows.remade(schedule, self.mesh.size), proof=proof)

    def replicate(self, tree: Any) -> Any:
        """The tree on every live device. What lived on more devices before comes from the survivors' own copies."""
        return jax.tree.map(partial(_replicated, NamedSharding(self.mesh, ALL)), tree)


def allreduce(
    plan: Plan, devices: Sequence[Any] | None = None, *, chunks: int | None = None, kernel: Any = False
) -> Allreduce:
    """Prepare the all-reduce of a plan: `devices` are those of all its chips, or of the live ones.

    On a TPU each device is placed by its own coordinates, and a chip may have two; elsewhere by its order. Without
    `chunks` there are as many as keep the links busy half of the time. With `kernel=True` it runs as one Pallas kernel
    on TPUs; `kernel=InterpretParams(…)` of Pallas runs that on any device.
    """
    if not isinstance(plan, Plan):
        raise PlanError("allreduce takes plans of trees: plan without staged=True, or use collective() for groups")
    here = placed(plan.mesh, jax.devices() if devices is None else devices)
    line = jax.sharding.Mesh(np.array(here), (AXIS,))
    schedule = plan.schedule(chunks_of(plan) if chunks is None else chunks, hop=HOP, even=True)
    return _made(schedule, line, kernel)


def chunks_of(plan: Plan) -> int:
    """The fewest chunks that keep the links busy half of the time; large payloads gain by more."""
    return max(len(plan), math.ceil(HOP * plan.hops / plan.max_load)) if plan.max_load else 1


def _made(schedule: Schedule, mesh: jax.sharding.Mesh, kernel: Any = False) -> Allreduce:
    proof = require_proof(schedule)
    if not kernel:
        return Allreduce(schedule, mesh, tables_of(schedule, mesh.size, 0), proof=proof)
    from meshmend.mesh.executors import jax_pallas

    rows = jax_pallas.programs(schedule, mesh.size, AXIS, kernel is not True and kernel)
    return Allreduce(schedule, mesh, rows, proof=proof)


def _replicated(sharding: NamedSharding, leaf: Any) -> Any:
    if isinstance(leaf, jax.Array) and leaf.is_fully_replicated:
        held = {shard.device: shard.data for shard in leaf.addressable_shards}
        mine = [device for device in sharding.mesh.devices.flat if device in sharding.addressable_devices]
        if all(device in held for device in mine):
            return jax.make_array_from_single_device_arrays(leaf.shape, sharding, [held[device] for device in mine])
        leaf = next((held[device] for device in mine if device in held), leaf)
    return jax.device_put(leaf, sharding)


@cache
def _summing(devices: jax.sharding.Mesh, kind: Any) -> Any:
    def own(tree: Any, tables: Tables) -> Any:
        return _reduced(jax.tree.map(lambda leaf: leaf[0], tree), tables)

    specs = EACH, jax.tree.unflatten(kind, [None] * kind.num_leaves).spec
    return jax.jit(jax.shard_map(own, mesh=devices, in_specs=specs, out_specs=ALL, check_vma=False))


def _reduced(tree: Any, tables: Tables) -> Any:
    """One sum for each type of number."""
    cores = lax.axis_size(AXIS) // len(tables.mesh.live)
    leaves, shape = jax.tree.flatten(tree)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    for kind in {leaf.dtype: None for leaf in leaves}:  # in the order of the leaves, the same on every device
        which = [i for i, leaf in enumerate(leaves) if leaf.dtype == kind]
        for i in which:
            _check(leaves[i])
        flat = jnp.concatenate([leaves[i].ravel() for i in which])
        if flat.size == 0:
            continue
        flat = tables.summed(flat) if cores == 1 else jax_cores.sum_by_halves(flat, tables.summed, AXIS)
        ends = np.cumsum([leaves[i].size for i in which])[:-1]
        for i, part in zip(which, jnp.split(flat, ends), strict=True):
            leaves[i] = part.reshape(leaves[i].shape)
    return jax.tree.unflatten(shape, leaves)


def _check(leaf: jax.Array) -> None:
    if leaf.dtype == bool:
        raise PlanError("a leaf of booleans has no sum: convert it to integers first")
    if _varies(lax.axis_index(AXIS)) and not _varies(leaf):
        raise PlanError(
            f"a leaf of shape {leaf.shape} is the same on all chips already (jax.grad inside shard_map adds up by "
            "itself what belongs to replicated weights): give shard_map check_vma=False"
        )


def _varies(value: jax.Array) -> bool:
    """Whether JAX thinks that the value differs between chips; with check_vma=False it does not say so of any."""
    kind = getattr(jax.typeof(value), "manual_axis_type", None)
    return kind is None or AXIS in kind.varying
