"""Which device is which chip.

A TPU knows where it is: its `coords` decide, in any axes of the machine and from any corner. Other devices are
taken in their order, row by row and layer by layer. The devices given are those of all chips of the mesh, or those of
the live ones. A chip of TPU v3, v4 or TPU7x shows two devices, its cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import numpy as np

from meshmend.errors import PlanError
from meshmend.mesh import Fabric, Mesh, on_grid
from meshmend.mesh.grid import Chip


def placed(network: Fabric, devices: Sequence[Any]) -> list[Any]:
    """The devices of the live chips, in order of `mesh.live`; the two of a chip come one after the other."""
    mesh = on_grid(network, "the XLA executor needs", "use mm.local or MPI ranks")
    live = [mesh.chip(i) for i in mesh.live]
    on_tpus = all(getattr(device, "platform", "") == "tpu" for device in devices)
    # Each place with its devices: one, or two on chips that show two cores.
    places: dict[Any, list[Any]] = {}
    for number, device in enumerate(devices):
        places.setdefault(tuple(int(c) for c in device.coords) if on_tpus else number, []).append(device)
    cores = {len(group) for group in places.values()}
    if cores not in ({1}, {2}):
        raise PlanError(
            f"{len(devices)} devices share {len(places)} coordinates: give one device of each chip, or two of each"
        )
    if len(places) not in (mesh.size, len(live)):
        raise PlanError(
            f"{len(places)} devices for {mesh}: give {mesh.size}, one for each chip"
            + (f", or {len(live)}, one for each live chip" if len(live) < mesh.size else "")
        )
    chips = live if len(places) == len(live) else [mesh.chip(i) for i in range(mesh.size)]
    at = _on_the_mesh(mesh, list(places), chips) if on_tpus else dict(zip(chips, places, strict=True))
    return [device for chip in live for device in sorted(places[at[chip]], key=_core)]


def _core(device: Any) -> int:
    return getattr(device, "core_on_chip", 0)


def _on_the_mesh(mesh: Mesh, spots: list[Chip], chips: list[Chip]) -> dict[Chip, Chip]:
    """The coordinates of each chip."""
    away = np.array(spots) - np.min(spots, axis=0)
    corner = np.min(chips, axis=0)
    # A slice lies in any of the machine's axes; those along which it has no extent come last.
    axes = np.argsort(away.max(0) == 0, kind="stable").tolist()
    for order in permutations(axes, len(mesh.dims)):
        rest = [axis for axis in axes if axis not in order]
        found = {tuple(chip): spot for chip, spot in zip((away[:, order] + corner).tolist(), spots, strict=True)}
        if found.keys() == set(chips) and not away[:, rest].any():
            return found
    raise PlanError(
        f"the devices' coordinates, {min(spots)} to {max(spots)}, do not form {mesh}: "
        "give the mesh that this slice has, with its dead chips"
    )
