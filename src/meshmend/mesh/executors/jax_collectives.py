"""Runs the plan of any collective, or of groups, on XLA devices: inside `shard_map`, over the live devices only.

    gather = mm.jax.collective(mm.plan(mesh, collective="all_gather"))
    step = jax.jit(jax.shard_map(train, mesh=gather.mesh, in_specs=(P("chips"), gather.spec), out_specs=P("chips"),
                                 check_vma=False))  # train calls gather(own, tables)
    out = step(rows, gather.tables)

What goes in and what comes out of each chip is what `meshmend.mesh.executors.collectives` says. Every chip has a buffer
for all chunks, also for those that it only forwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshmend.errors import PlanError
from meshmend.mesh.collectives.plan import CollectivePlan
from meshmend.mesh.collectives.schedule import CollectiveSchedule
from meshmend.mesh.executors.base import require_proof
from meshmend.mesh.executors.jax_tables import AXIS, EACH, Tables, put, run_slots, tables_of
from meshmend.mesh.executors.pieces import Pieces, pieces_of
from meshmend.mesh.executors.placement import placed
from meshmend.mesh.executors.slots import HOP
from meshmend.mesh.proof import Proof


@partial(jax.tree_util.register_dataclass, data_fields=["slots", "take", "give"], meta_fields=[])
@dataclass(frozen=True, eq=False)
class PieceTables:
    """The slots, and each chip's rows of the tables of pieces."""

    slots: Tables
    take: Any
    give: Any


class Collective:
    """One collective over the live devices of a mesh."""

    def __init__(self, schedule: CollectiveSchedule, mesh: jax.sharding.Mesh, proof: Proof | None = None) -> None:
        """Without a proof the schedule is proved here, which raises a `VerifyError` if it is wrong."""
        self.proof = require_proof(schedule, proof)
        self.schedule, self.mesh = schedule, mesh
        self._pieces: Pieces = pieces_of(schedule)

    @cached_property
    def _rows(self) -> PieceTables:
        slots = tables_of(self.schedule.table, self.mesh.size, 0)
        return PieceTables(slots, self._pieces.take, self._pieces.give)

    @cached_property
    def tables(self) -> PieceTables:
        """The argument that goes with `spec`."""
        return jax.tree.map(partial(put, self.mesh), self._rows, self.spec)  # type: ignore[no-any-return]

    @property
    def spec(self) -> PieceTables:
        """How the tables are divided: an entry for `in_specs`."""
        return PieceTables(self._rows.slots.spec, EACH, EACH)

    def __call__(self, own: jax.Array, tables: PieceTables) -> jax.Array:
        """One chip's output, given its input: for use inside `shard_map`."""
        pieces, numbers = self._pieces, self._pieces.row(own.shape)
        shape = pieces.shape(own.shape)
        if numbers == 0:
            return jnp.zeros(shape, own.dtype)
        width = -(-numbers // pieces.per)
        cut = jnp.pad(own.reshape(pieces.inputs, numbers), ((0, 0), (0, pieces.per * width - numbers)))
        cut = cut.reshape(pieces.inputs * pieces.per, width)
        take, give = tables.take[0], tables.give[0]
        held = jnp.where((take >= 0)[:, None], cut[jnp.maximum(take, 0)], jnp.zeros((), own.dtype))
        done = run_slots(jnp.pad(held, ((0, 1), (0, 0))), tables.slots)
        out = jnp.where((give >= 0)[:, None], done[jnp.maximum(give, 0)], cut[jnp.clip(-1 - give, 0, len(cut) - 1)])
        return out.reshape(pieces.outputs, -1)[:, :numbers].reshape(shape)

    def run(self, parts: Any) -> jax.Array:
        """The outputs of all live devices, given their inputs: a row each, in order of the plan's `mesh.live`."""
        if np.ndim(parts) < 2 or len(parts) != self.mesh.size:
            raise PlanError(
                f"an array of shape {np.shape(parts)} was given for {self.mesh.size} live devices: "
                "the first axis has one row per live device"
            )
        return self._run(jnp.asarray(parts), self.tables)  # type: ignore[no-any-return]

    @cached_property
    def _run(self) -> Any:
        def own(part: jax.Array, tables: PieceTables) -> jax.Array:
            return self(part[0], tables)[None]

        specs = EACH, self.spec
        return jax.jit(jax.shard_map(own, mesh=self.mesh, in_specs=specs, out_specs=EACH, check_vma=False))


def collective(plan: CollectivePlan, devices: Sequence[Any] | None = None, *, chunks: int | None = None) -> Collective:
    """Prepare a collective, or the sums of groups, for XLA: `devices` are those of all chips, or of the live ones.

    Without `chunks` there are as many as keep the links busy half of the time.
    """
    if not isinstance(plan, CollectivePlan):
        raise PlanError("collective takes plans of groups and of other collectives: use allreduce() for all chips")
    here = placed(plan.mesh, jax.devices() if devices is None else devices)
    if len(here) != len(plan.mesh.live):
        raise PlanError(f"{len(here)} devices for {len(plan.mesh.live)} live chips: give one device of each chip")
    if chunks is None:
        chunks = max(plan.cut, math.ceil(HOP * plan.hops / plan.max_load)) if plan.max_load else plan.cut
    schedule = plan.schedule(chunks, hop=HOP, even=True)
    return Collective(schedule, jax.sharding.Mesh(np.array(here), (AXIS,)))
