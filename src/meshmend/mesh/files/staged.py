"""Staged plans and their schedules as columns, and back: a row of `layers` per layer of every stage of every flow.

A chip outside a layer and a root of it both have no way there, so that the layers are trees like all others in files;
the roots are listed beside them, as their places in the table of layers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.mesh import Fabric, Mesh
from meshmend.mesh.schedule.schedule import Schedule
from meshmend.mesh.staged import StagedPlan, StagedSchedule
from meshmend.mesh.staged.plan import ABSENT, ROOT, StagedFlow

Array = npt.NDArray[Any]
PLAN = {"share": "f8", "down": "i1", "layer_flow": "i4", "layer_stage": "i4", "layers": "i1", "roots": "i4"}
"""The columns of a plan: a row per flow, then a row per layer."""
CELLS = {"take": "i4", "put": "i4", "chip": "i4", "source": "i4", "result": "i4", "flow": "i4"}
"""The columns of a schedule, beside those of its table."""
FLOWS = 128
"""Flows for which binary files have room."""


def plan_apart(plan: StagedPlan) -> dict[str, Any]:
    """The columns of a plan."""
    every = [(flow, stage) for flow, one in enumerate(plan.flows) for stage in range(len(one.stages))]
    sizes = [len(plan.flows[flow].stages[stage]) for flow, stage in every]
    layers = np.concatenate([stage for flow in plan.flows for stage in flow.stages])
    return {
        "share": np.array([flow.share for flow in plan.flows]),
        "down": np.stack([flow.down for flow in plan.flows]),
        "layer_flow": np.repeat([flow for flow, _ in every], sizes).astype(np.int32),
        "layer_stage": np.repeat([stage for _, stage in every], sizes).astype(np.int32),
        "layers": np.maximum(layers, -1),
        "roots": np.flatnonzero(layers == ROOT).astype(np.int32),
    }


def plan_together(mesh: Fabric, fields: dict[str, Any], columns: dict[str, Array]) -> StagedPlan:
    """A plan from its columns; a `ValueError` if they are none."""
    share, down, of_flow, of_stage, ways, roots = (columns[name] for name in PLAN)
    if len(down) != len(share) or not len(of_flow) == len(of_stage) == len(ways):
        raise ValueError("flows, stages and layers do not go together")
    steps = np.diff(of_flow * (len(ways) + 1) + of_stage, prepend=0)
    if (steps < 0).any() or not np.isin(of_flow, np.arange(len(share))).all():
        raise ValueError("its layers are not in order")
    layers = np.where(ways < 0, np.int8(ABSENT), ways).astype(np.int8)
    layers.reshape(-1)[roots] = ROOT
    flows = []
    for number, (part, back) in enumerate(zip(share.tolist(), down, strict=True)):
        stages = of_stage[of_flow == number]
        count = int(stages.max(initial=-1)) + 1
        if not np.array_equal(np.unique(stages), np.arange(count)):
            raise ValueError(f"flow {number} lacks a stage")
        own = layers[of_flow == number]
        flows.append(StagedFlow(part, tuple(own[stages == stage] for stage in range(count)), back))
    return StagedPlan(_grid(mesh), tuple(flows), fields["label"], fields["why"])


def cells_apart(schedule: StagedSchedule) -> dict[str, Any]:
    """The columns of a schedule that its table does not have."""
    return {"result": schedule.result.ravel()}


def cells_together(table: Schedule, columns: dict[str, Array]) -> StagedSchedule:
    """A schedule from its table and its other columns."""
    take, put, chip, source, result, flow = (columns[name] for name in CELLS)
    _grid(table.mesh)
    return StagedSchedule(table, take, put, chip, source, result.reshape(-1, len(table.mesh.live)), flow)


def rows(mesh: Fabric, sent: int) -> dict[str, int]:
    """The most rows that the columns of something right can have, for so many chunks."""
    sides = sum(mesh.dims) if isinstance(mesh, Mesh) else 0
    layers, cells = FLOWS * sides, FLOWS * (sides + 1) * mesh.size
    return {
        **dict.fromkeys(("layer_flow", "layer_stage", "layers"), layers),
        **dict.fromkeys(("roots", "chip", "source", "result"), cells),
        **dict.fromkeys(("take", "put"), transfers(mesh, sent)),
        "flow": sent,
    }


def transfers(mesh: Fabric, sent: int) -> int:
    """A chunk crosses a link once for every root of its line, and once on the way back."""
    return (1 + max(mesh.dims)) * mesh.link_numbers * sent if isinstance(mesh, Mesh) else 0


def _grid(mesh: Fabric) -> Mesh:
    if not isinstance(mesh, Mesh):
        raise ValueError(f"{mesh} is no grid")
    return mesh
