"""A plan as text: a map with one flow drawn as arrows, and the figures with the bound and its reason."""

from __future__ import annotations

import numpy as np

from meshmend.base.units import plural
from meshmend.mesh import Fabric, Mesh, text_map
from meshmend.mesh.collectives.plan import CollectivePlan
from meshmend.mesh.planners.plan import Plan, Ways, largest_share

ARROWS = "↑→↓←↖↘"
TALL = 40
"""Rows of the map that are printed; the middle of taller meshes is left out."""


def describe(plan: Plan) -> str:
    """What `print(plan)` shows."""
    lines = _shown(plan.mesh, plan.up[0], int(plan.root[0]))
    flows = plural(len(plan), "flow")
    figures = {
        "mesh": _size(plan.mesh),
        "plan": f"{plan.algorithm}, {flows}, depth {plan.depth}, {plural(plan.hops, 'hop')} up and down"
        + ("" if plan.overlap else "; all reducing ends before broadcasting begins"),
        "speed": f"{plan.algbw:.3f} B of at most {plan.bound.value:.3f} B ({100 * plan.efficiency:.1f} %)",
        "bound": plan.bound.reason,
        "load": f"the busiest link carries {plan.max_load:.3f} of the payload"
        if plan.overlap
        else f"the busiest links of the two phases carry {plan.max_load:.3f} of the payload together",
    }
    roots = len(set(plan.root.tolist()))
    busiest = float(f"{100 * largest_share(plan):.2g}")
    figures["roots"] = (
        f"{plural(roots, 'chip')} of {len(plan.mesh.live)}; the busiest holds {busiest:g} % of the sums before "
        "they are broadcast"
    )
    if plan.why:
        figures["why"] = plan.why
    caption = f"flow 0 (of 0 to {len(plan) - 1}): "
    if not isinstance(plan.mesh, Mesh):
        caption += "each chip adds what comes from those behind the arrow, the root first"
    else:
        caption += "each chip sends its part along the arrow, * is the root, x is dead"
        caption += " (↖ to the layer before, ↘ to the next)" * (plan.mesh.layers > 1)
    return "\n".join([*lines, caption, "", *(f"{name:<6} {text}" for name, text in figures.items())])


def describe_collective(plan: CollectivePlan) -> str:
    """What `print(plan)` shows of another collective, or of groups."""
    tree = plan.up[0] if plan.kind.up else plan.down[0]
    lines = _shown(plan.mesh, tree, int(plan.root[0]))
    caption = f"flow 0 (of 0 to {len(plan) - 1}): "
    caption += (
        "a chip, and those behind it"
        if not isinstance(plan.mesh, Mesh)
        else (
            "parts go along the arrows to the root *"
            if plan.kind.up
            else "each chip gets from where its arrow points, * sends"
        )
    )
    if (plan.group < 0).any() or plan.groups > 1:
        caption += "; chips of other groups forward, . are not in this flow"
    apart = f" in {plan.groups} groups at once" if plan.groups > 1 else ""
    figures = {
        "mesh": _size(plan.mesh),
        "plan": f"{plan.collective}{apart}, {plural(len(plan), 'flow')}, {plural(plan.hops, 'hop')}",
        "speed": f"{plan.algbw:.3f} B{' in every group' * (plan.groups > 1)} of at most {plan.bound.value:.3f} B "
        f"({100 * plan.efficiency:.1f} %)",
        "bound": plan.bound.reason,
        "load": f"the busiest link carries {plan.max_load:.3f} of a payload",
        "why": plan.why,
    }
    return "\n".join([*lines, caption, "", *(f"{name:<6} {text}" for name, text in figures.items() if text)])


def _size(mesh: Fabric) -> str:
    return f"{mesh}, {plural(len(mesh.live), 'live chip')} and {plural(len(mesh.links), 'live link')}"


def _shown(mesh: Fabric, tree: Ways, root: int) -> list[str]:
    """One tree: the rows of a map with arrows, or of a graph, each chip with those that hang on it."""
    if isinstance(mesh, Mesh):
        marks = {
            int(chip): ARROWS[tree[chip]] if tree[chip] >= 0 else "*" if chip == root else "." for chip in mesh.live
        }
        lines = text_map(mesh, marks=marks, links=False).splitlines()
    else:
        lines = _hanging(mesh, tree, root)
    if len(lines) > TALL:
        half = TALL // 2
        lines[half:-half] = [f"… {len(lines) - 2 * half} more rows …"]
    return lines


def _hanging(mesh: Fabric, tree: Ways, root: int) -> list[str]:
    """`3 ← 0 5`, from the root on."""
    children: dict[int, list[int]] = {}
    for chip in np.flatnonzero(tree >= 0).tolist():
        children.setdefault(int(mesh.neighbour[chip, tree[chip]]), []).append(chip)
    lines, order = [], [root]
    for chip in order:
        if chip in children:
            order += children[chip]
            lines.append(f"{mesh.name(chip)} ← " + " ".join(map(mesh.name, children[chip])))
    return lines
