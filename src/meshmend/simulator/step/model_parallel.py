"""Model parallelism: what the chips of one replica send each other, and the gradient sum of divided kernels.

A replica of k cores is a **tile** of m = k / (cores per chip) chips in one column. Cores of one chip exchange through
its memory, which is left out. With B bytes/s and L seconds of latency a link, and activations in bf16:

* images divided by rows: before each convolution wider than 1x1 a chip sends its rim of (kernel / 2) rows to each
  neighbour, both at once, and gets their gradients on the way back: 2 * (rim / B + L);
* kernels divided by features: the output of each attention and each dense block is summed over the tile, forward and
  backward: 2 * (2 * (m - 1) / m * output / B + 2 * (m - 1) * L);
* batch norm over a span of images: the replicas that share one sum a few numbers per norm, forward and backward. Only
  the way counts: 2 * 2 * (rows + cols - 2) * L over a group of rows x cols chips, as square as can be;
* tables divided over all chips: each example's rows travel from their owners, and gradients back. Half of what every
  chip sends crosses the middle of the mesh: 2 * (a chip's rows * chips / 4) / (B * links across the middle).

Where kernels are divided, a chip has 1/m of the payload, and the m chips of a tile sum theirs apart. Each row of the
mesh belongs to one of these m sums, each column to all. So `rowcol` goes rows first: along rows a sum has the links for
itself, and along columns, where it sends 1/cols of the payload, it shares them and hops over the tile's other chips.
Other plans use rows and columns alike: all their links are taken as shared, which is safe.
"""

from __future__ import annotations

import math
from functools import lru_cache

from meshmend.errors import SimulateError
from meshmend.mesh import Mesh
from meshmend.mesh.planners import ALGORITHMS, LinkSpeed
from meshmend.simulator.network.network import simulate
from meshmend.simulator.step.hardware import Machine
from meshmend.simulator.step.models import Model

NUMBER = 2
"""Bytes of an activation."""


def tile(cores: int, machine: Machine) -> int:
    """Chips of one replica."""
    return max(1, cores // machine.cores)


def inside(model: Model, machine: Machine, mesh: Mesh, cores: int, examples: int) -> float:
    """Seconds of a step that the chips of a replica, or of divided tables, spend on messages to each other."""
    link, chips = machine.link, tile(cores, machine)
    time = 0.0
    if model.exchanged and len(mesh.live) > 1:
        rows = machine.cores * examples * model.exchanged * NUMBER
        time += 2 * rows * len(mesh.live) / 4 / (link.bandwidth * _middle(mesh))
    if chips > 1:
        for layer in model.layers:
            if layer.split == "rows" and layer.halo:
                time += 2 * (examples * layer.halo * NUMBER / link.bandwidth + link.latency + machine.begin)
            if layer.split == "features" and layer.reduced:
                output = examples * layer.reduced * NUMBER
                time += 2 * 2 * (chips - 1) * (output / chips / link.bandwidth + link.latency) + 2 * machine.begin
    return time


def norm_seconds(model: Model, machine: Machine, cores: int, examples: int, span: int) -> float:
    """Seconds that the norms of a step wait for their neighbours: `span` images share their statistics."""
    replicas = math.ceil(span / examples)
    if replicas < 2:
        return 0.0
    chips = max(1, replicas * cores // machine.cores)
    rows = next(rows for rows in range(math.isqrt(chips), 0, -1) if chips % rows == 0)
    return 2 * model.norms * (2 * (rows + chips // rows - 2) * machine.link.latency + machine.begin)


def _middle(mesh: Mesh) -> int:
    """Links across the middle of the longer side."""
    across, wrapped = (mesh.cols, mesh.wrap[0]) if mesh.rows >= mesh.cols else (mesh.rows, mesh.wrap[1])
    return across * (2 if wrapped else 1)


@lru_cache(64)
def divided_sum(mesh: Mesh, algorithm: str, nbytes: float, link: LinkSpeed, chips: int) -> float:
    """The sum of one part in `chips` of the kernels over all tiles, while the others do the same."""
    tiles = coarse(mesh, chips)
    if tiles.size == 1:
        return 0.0
    planner = ALGORITHMS[algorithm]
    if planner.along_rows:
        jumped = 2 * (mesh.rows - tiles.rows) * link.latency
        return simulate(planner.along_rows(tiles), nbytes, link).seconds + jumped
    shared = LinkSpeed(link.bandwidth / chips, link.latency * chips)
    return simulate(planner(tiles), nbytes, shared).seconds


def coarse(mesh: Mesh, chips: int) -> Mesh:
    """The mesh whose chips are the tiles of so many chips."""
    if chips == 1:
        return mesh
    if not mesh.intact or mesh.rows % chips:
        raise SimulateError(
            f"kernels divided among {chips} chips need an intact mesh whose rows are a multiple of {chips}, and {mesh} "
            "is not: take fewer cores per replica"
        )
    rows = mesh.rows // chips
    return Mesh(rows, mesh.cols, (mesh.wrap[0] and rows > 2, mesh.wrap[1]))
