"""Seeded random failures: the same seed and mesh give the same hole on every machine."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshmend.base.units import agree, plural
from meshmend.errors import MeshError
from meshmend.mesh.cabling import Cabling, Chip, Link
from meshmend.mesh.grid import Grid
from meshmend.mesh.hole import blocks, chips_of, count, piece


class Picked(NamedTuple):
    """What is to die."""

    chips: list[Chip]
    links: list[Link]


def order(grid: Cabling) -> tuple[str, ...]:
    """What is killed first: the larger things, so that smaller ones are picked among what is left."""
    return (*(f"{kind}s" for kind in reversed(_kinds(grid))), "links")


def _kinds(grid: Cabling) -> tuple[str, ...]:
    """What chips die in; only those on a grid share boards and hosts."""
    return tuple(blocks(grid)) if isinstance(grid, Grid) else ("chip",)


def check(grid: Cabling, seed: int, counts: dict[str, float]) -> None:
    """Raise a `MeshError` unless the seed and the names of what to kill make sense."""
    unknown = sorted(set(counts) - set(order(grid)))
    if unknown:
        known = ", ".join(["chips", "links", *(f"{kind}s" for kind in _kinds(grid) if kind != "chip")])
        raise MeshError(f"cannot fail {', '.join(unknown)} at random: choose from {known}")
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise MeshError(f"seed={seed!r}: expected a whole number, 0 or more")


def pick(grid: Cabling, kind: str, number: float, random: np.random.Generator) -> Picked:
    """Pick things of one kind among those wholly alive; an int is how many, a float under 1 which share of them."""
    if kind == "links":
        links = [grid.ends(chip, way) for chip, way in grid.links.tolist()]
        picked = random.permutation(len(links))[: _how_many(kind, number, len(links))]
        return Picked([], [links[i] for i in picked])
    if kind == "chips":
        picked = random.permutation(len(grid.live))[: _how_many(kind, number, len(grid.live))]
        return Picked([grid.chip(int(grid.live[i])) for i in picked], [])
    assert isinstance(grid, Grid), f"{kind} are blocks of a grid"
    every = (chips_of(grid, piece(grid, kind[:-1], i)) for i in range(count(grid, kind[:-1])))
    whole = [block for block in every if all(grid.alive[grid.index(chip)] for chip in block)]
    picked = random.permutation(len(whole))[: _how_many(kind, number, len(whole))]
    return Picked([chip for i in picked for chip in whole[i]], [])


def _how_many(kind: str, number: float, of: int) -> int:
    if isinstance(number, bool) or not isinstance(number, (int, float, np.integer, np.floating)):
        raise MeshError(f"{kind}={number!r}: give a whole number or a rate between 0 and 1")
    whole = isinstance(number, (int, np.integer))
    if not whole and not 0 <= number < 1:
        raise MeshError(f"{kind}={number}: a rate lies between 0 and 1; give a whole number for a count")
    wanted = int(number) if whole else round(number * of)
    if not 0 <= wanted <= of:
        alive = f"{plural(of, kind.removesuffix('s'))} that {agree(of, 'is', 'are')}"
        raise MeshError(f"{kind}={number}: this mesh has {alive} wholly alive, so choose 0 to {of}")
    return wanted
