"""A root on every chip: the same trees, whose chunks end in different places.

Between reducing and broadcasting only roots hold whole sums. Where each chip updates the weights whose gradients it
holds (a sharded update), everything waits for the busiest root, and a packing has few roots, all in the middle. But a
tree that reduces and broadcasts over the same links loads each of them once each way **for any root**. So every
tree's share is cut into pieces with different roots, so that all chips hold 1/N of the sums and no link carries more.

What it costs is depth: a tree is deeper from its rim than from its middle. So each chip takes the trees in which its
farthest chip is near, and those for which that matters most, at the corners of the mesh, choose first.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshmend.base.kernels import kernel
from meshmend.errors import PlanError
from meshmend.mesh.grid import IntArray
from meshmend.mesh.planners.plan import Plan, Ways, depths, parents_of, there_and_back

MOST_ROOTS = 4096
"""On larger machines chips near the middle are roots for the others: tables grow with chips times roots."""
ROUNDING = 1e-9
"""A piece smaller than this is none."""


def spread_roots(plan: Plan) -> Plan:
    """The plan with its flows cut into pieces that have their roots on all chips, each with the same share."""
    if not isinstance(plan, Plan):
        raise PlanError("the roots of plans of trees can be spread: plan without staged=True, groups or collective")
    if not there_and_back(plan):
        raise PlanError(
            f"the roots of {plan.algorithm} cannot be spread: its flows reduce and broadcast over different links; "
            "use trees"
        )
    mesh = plan.mesh
    parent, depth = parents_of(mesh, plan.up), depths(mesh, plan.up)
    far = _farthest(parent, depth)[:, mesh.live]
    chips = np.argsort(-far.min(0), kind="stable")  # those that are far from something in every tree come first
    if len(chips) > MOST_ROOTS:
        chips = chips[-MOST_ROOTS:]
    pieces = _share_out(plan.share, far, chips)
    flow = np.array([piece[0] for piece in pieces])
    root = mesh.live[np.array([piece[1] for piece in pieces])].astype(np.int32)
    share = np.array([piece[2] for piece in pieces])
    back = mesh.link_source(mesh.reverse)[1].astype(np.int8).reshape(mesh.neighbour.shape)
    up = _rerooted(mesh.neighbour, back, plan.up[flow], root)
    why = f"{plan.why} (before its roots were spread)" if plan.why else ""
    return Plan(mesh, plan.algorithm, share / share.sum(), root, up, up, plan.overlap, why, plan._bound)


def _share_out(
    shares: npt.NDArray[np.float64], far: IntArray, chips: npt.NDArray[np.int64]
) -> list[tuple[int, int, float]]:
    """(flow, chip, share): every chip gets as much, of the flows that are shallow from it."""
    left = shares.copy()
    pieces: list[tuple[int, int, float]] = []
    for chip in chips.tolist():
        wanted = 1 / len(chips)
        for flow in np.argsort(far[:, chip], kind="stable").tolist():
            taken = min(wanted, float(left[flow]))
            if taken > ROUNDING:
                pieces.append((flow, chip, taken))
                left[flow] -= taken
                wanted -= taken
            if wanted <= ROUNDING:
                break
    return pieces


@kernel
def _farthest(parent: IntArray, depth: IntArray) -> IntArray:
    """[flow, chip]: hops from each chip to the farthest one in the flow's tree."""
    flows, chips = parent.shape
    far = np.zeros((flows, chips), np.int32)
    for flow in range(flows):
        order = np.argsort(depth[flow], kind="mergesort")
        # The two longest ways down, the child through which the first goes, and the longest that begins upwards.
        down, second = np.zeros(chips, np.int32), np.zeros(chips, np.int32)
        through, upwards = np.full(chips, -1, np.int32), np.zeros(chips, np.int32)
        for i in range(chips - 1, -1, -1):
            chip = order[i]
            above, way = parent[flow, chip], down[chip] + 1
            if above >= 0 and way > down[above]:
                second[above], down[above], through[above] = down[above], way, chip
            elif above >= 0 and way > second[above]:
                second[above] = way
        for chip in order:
            above = parent[flow, chip]
            if above >= 0:
                beside = second[above] if through[above] == chip else down[above]
                upwards[chip] = 1 + max(beside, upwards[above])
            far[flow, chip] = max(down[chip], upwards[chip])
    return far


@kernel
def _rerooted(near: IntArray, back: Ways, up: Ways, root: IntArray) -> Ways:
    """The trees with other roots: the path from each new root to the old one is turned round."""
    out = up.copy()
    for flow in range(len(root)):
        chip, way = root[flow], np.int8(-1)
        while True:
            old = out[flow, chip]
            out[flow, chip] = way
            if old < 0:
                break
            chip, way = near[chip, old], back[chip, old]
    return out
