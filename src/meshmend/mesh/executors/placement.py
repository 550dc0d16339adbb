"""Which device is which chip.

A TPU knows where it is: its `coords` decide, in any axes of the machine and from any corner. Other devices are
taken in their order, row by row and layer by layer. The devices given are those of all chips of the mesh, or those of
the live ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import numpy as np

from meshmend.errors import PlanError
from meshmend.mesh import Mesh


def placed(mesh: Mesh, devices: Sequence[Any]) -> list[Any]:
    """The devices of the live chips, in order of `mesh.live`."""
    live = [mesh.chip(i) for i in mesh.live]
    if len(devices) not in (mesh.size, len(live)):
        raise PlanError(
            f"{len(devices)} devices for {mesh}: give {mesh.size}, one for each chip"
            + (f", or {len(live)}, one for each live chip" if len(live) < mesh.size else "")
        )
    chips = live if len(devices) == len(live) else [mesh.chip(i) for i in range(mesh.size)]
    if any(getattr(device, "platform", "") != "tpu" for device in devices):
        at = dict(zip(chips, devices, strict=True))
        return [at[chip] for chip in live]
    spots = [tuple(int(c) for c in device.coords) for device in devices]
    if len(set(spots)) < len(spots):
        raise PlanError(
            f"{len(devices)} devices share {len(set(spots))} coordinates: give one device per chip "
            "(the cores of a chip can be summed first)"
        )
    away = np.array(spots) - np.min(spots, axis=0)
    corner = np.min(chips, axis=0)
    # A slice lies in any of the machine's axes; those along which it has no extent come last.
    axes = np.argsort(away.max(0) == 0, kind="stable").tolist()
    for order in permutations(axes, len(mesh.dims)):
        rest = [axis for axis in axes if axis not in order]
        found = {tuple(spot): d for spot, d in zip((away[:, order] + corner).tolist(), devices, strict=True)}
        if found.keys() == set(chips) and not away[:, rest].any():
            return [found[chip] for chip in live]
    raise PlanError(
        f"the devices' coordinates, {min(spots)} to {max(spots)}, do not form {mesh}: "
        "give the mesh that this slice has, with its dead chips"
    )
