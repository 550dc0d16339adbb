"""Is a plan right? Exactly-once follows from its shape, so the shape is what is checked.

Every up and every down must be a spanning tree of the live chips over live links, with the same root, and the shares
must add up to 1. Nothing here looks at how the plan was made.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshmend.errors import VerifyError
from meshmend.mesh import Fabric
from meshmend.mesh.planners.plan import Plan, Ways


def verify_plan(plan: Plan) -> None:
    """Raise a `VerifyError` that names the flow and the chip, unless the plan is right."""
    mesh, flows = plan.mesh, len(plan.share)
    shapes = {"share": (flows,), "root": (flows,), "up": (flows, mesh.size), "down": (flows, mesh.size)}
    for name, kind in (("share", "f"), ("root", "i"), ("up", "i"), ("down", "i")):
        array = getattr(plan, name)
        if not isinstance(array, np.ndarray) or array.dtype.kind != kind:
            raise VerifyError(f"{name} is not an array of {'numbers' if kind == 'f' else 'integers'}")
    for name, shape in shapes.items():
        if getattr(plan, name).shape != shape:
            raise VerifyError(f"{name} has shape {getattr(plan, name).shape}, expected {shape}")
    bad = ~((plan.share > 0) & (plan.share <= 1 + 1e-9))
    if bad.any():
        flow = int(np.argmax(bad))
        raise VerifyError(f"flow {flow} has share {plan.share[flow]}, expected one above 0 and at most 1", flow=flow)
    if abs(plan.share.sum() - 1) > 1e-9:
        raise VerifyError(f"the shares add up to {plan.share.sum():.12g}, expected 1")
    for name, trees in (("up", plan.up), ("down", plan.down)):
        _verify_trees(mesh, name, trees, plan.root)


def _verify_trees(mesh: Fabric, name: str, trees: Ways, root: npt.NDArray[np.int32]) -> None:
    def refuse(wrong: npt.NDArray[np.bool_], what: str) -> None:
        if wrong.any():
            flow, chip = (int(i) for i in np.argwhere(wrong)[0])
            where = mesh.chip(chip)
            way = int(trees[flow, chip])
            text = what.format(way=mesh.ways[way] if 0 <= way < len(mesh.ways) else way)
            raise VerifyError(f"flow {flow}, {name} tree: chip {mesh.name(chip)} {text}", chip=where, flow=flow)

    chips = np.arange(mesh.size)
    is_root = chips == root[:, None]
    refuse((trees < -1) | (trees >= len(mesh.ways)), f"has way {{way}}, which is not one of {' '.join(mesh.ways)}")
    refuse(is_root & ~mesh.alive, "is the root, but it is dead")
    refuse(is_root & (trees >= 0), "is the root, but it sends {way}")
    refuse(~mesh.alive & (trees >= 0), "is dead, but takes part")
    refuse(mesh.alive & ~is_root & (trees < 0), "is cut off: it has no parent and is not the root")
    parent = np.where(trees >= 0, mesh.neighbour[chips, np.maximum(trees, 0)], chips)
    refuse(parent < 0, "goes {way}, where there is no live link")
    # Follow every parent 1, 2, 4, … steps: a chip that is not at the root after as many steps as chips never will.
    for _ in range(int(np.ceil(np.log2(max(2, mesh.size))))):
        parent = np.take_along_axis(parent, parent, 1)
    refuse(mesh.alive & (parent != root[:, None]), "never reaches the root: its path runs in a circle")
