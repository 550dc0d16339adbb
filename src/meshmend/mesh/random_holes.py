"""Seeded random failures: the same seed and mesh give the same hole on every machine."""

from __future__ import annotations

import numpy as np

from meshmend.errors import Chip, MeshError
from meshmend.mesh.mesh import BOARD, HOST, Link, Mesh

_BLOCKS: dict[str, Chip] = {"chips": (1, 1), "boards": BOARD, "hosts": HOST}


def fail_random(mesh: Mesh, seed: int, **counts: float) -> Mesh:
    """Kill things at random among those wholly alive; an int is how many, a float under 1 which part of them."""
    unknown = sorted(set(counts) - {*_BLOCKS, "links"})
    if unknown:
        raise MeshError(f"cannot fail {', '.join(unknown)} at random: choose from chips, links, boards, hosts")
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise MeshError(f"seed={seed!r}: a seed is a whole number from 0 up")
    random = np.random.default_rng(seed)
    for kind in ("hosts", "boards", "chips", "links"):
        if kind not in counts:
            continue
        things = _links(mesh) if kind == "links" else _blocks(mesh, _BLOCKS[kind])
        picked = random.permutation(len(things))[: _how_many(kind, counts[kind], len(things))]
        if kind == "links":
            mesh = mesh.fail(links=[things[i] for i in picked])  # type: ignore[misc]
        else:
            mesh = mesh.fail(chips=[chip for i in picked for chip in things[i]])
    return mesh


def _how_many(kind: str, count: float, of: int) -> int:
    if isinstance(count, bool) or not isinstance(count, (int, float, np.integer, np.floating)):
        raise MeshError(f"{kind}={count!r}: give a whole number or a rate between 0 and 1")
    whole = isinstance(count, (int, np.integer))
    if not whole and not 0 <= count < 1:
        raise MeshError(f"{kind}={count}: a rate lies between 0 and 1; give a whole number for a count")
    number = int(count) if whole else round(count * of)
    if not 0 <= number <= of:
        raise MeshError(f"{kind}={count}: this mesh has {of} {kind} that are wholly alive, so choose 0 to {of}")
    return number


def _links(mesh: Mesh) -> list[Link]:
    return [(mesh.chip(i), mesh.chip(mesh.neighbour[i, way])) for i, way in mesh.links]


def _blocks(mesh: Mesh, shape: Chip) -> list[list[Chip]]:
    height, width = shape
    corners = [(r, c) for r in range(0, mesh.rows, height) for c in range(0, mesh.cols, width)]
    blocks = [
        [(r + i, c + j) for i in range(min(height, mesh.rows - r)) for j in range(min(width, mesh.cols - c))]
        for r, c in corners
    ]
    return [block for block in blocks if not mesh.dead_chips.intersection(block)]
