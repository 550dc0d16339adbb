"""The bound is the least ratio over all partitions, and comes with one that has it."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings

from meshmend import Disconnected, Mesh, bound
from tests.strategies import all_meshes, meshes


def partitions(chips: list[int]) -> Iterator[list[list[int]]]:
    if not chips:
        yield []
        return
    for rest in partitions(chips[1:]):
        yield [[chips[0]], *rest]
        for i in range(len(rest)):
            yield [*rest[:i], [chips[0], *rest[i]], *rest[i + 1 :]]


def ratio(mesh: Mesh, part: np.ndarray) -> Fraction:
    chip, way = mesh.links.T
    crossing = part[chip] != part[mesh.neighbour[chip, way]]
    units = int(mesh.units[mesh.link_number(chip, way)][crossing].sum())
    return Fraction(units, mesh.whole * (len(set(part[mesh.live].tolist())) - 1))


@settings(max_examples=40, deadline=None)
@given(meshes(3) | all_meshes(2))
def test_equals_the_worst_of_all_partitions(mesh: Mesh) -> None:
    if not 2 <= len(mesh.live) <= 9:
        return
    worst = Fraction(99)
    for blocks in partitions(mesh.live.tolist()):
        part = np.full(mesh.size, -1)
        for label, block in enumerate(blocks):
            part[block] = label
        if len(blocks) > 1:
            worst = min(worst, ratio(mesh, part))
    assert bound(mesh).fraction == worst


@settings(max_examples=60, deadline=None)
@given(meshes(12) | all_meshes(6))
def test_the_partition_is_a_certificate(mesh: Mesh) -> None:
    limit = bound(mesh)
    assert (limit.part[~mesh.alive] == -1).all()
    if len(mesh.live) > 1:
        assert ratio(mesh, limit.part) == limit.fraction
        assert limit.fraction <= Fraction(len(mesh.links), len(mesh.live) - 1)
        assert limit.reason


@pytest.mark.parametrize(
    ("text", "value"),
    [("4x4", 1.600), ("8x8", 1.778), ("16x16", 1.882), ("16x32", 1.910), ("32x32", 1.939), ("128x32", 1.961),
     ("128x32 wrap=y", 1.993), ("16x32 -4x2@6,12", 1.897), ("32x32 -4x2@14,15", 1.933), ("16x32 -2x2@6,12", 1.901)],
)  # fmt: skip
def test_known_values(text: str, value: float) -> None:
    assert bound(Mesh.parse(text)).value == pytest.approx(value, abs=5e-4)


@pytest.mark.parametrize(
    ("text", "value", "reason"),
    [
        ("5x5 -chip@0,1", 1.0, "chip 0,0 has one live link, which caps every plan at 1.0 B"),
        ("5x5 -chip@0,1 -chip@4,3", 1.0, "chip 0,0 (and 1 more like it) has one live link"),
        ("5x9 -2x1@0,4 -2x1@3,4", 1.0, "2 links join 3 parts"),
        ("12x25 -5x1@0,12 -5x1@7,12", 5 / 3, "5 links join 4 parts"),
        ("8x8 -2x2@2,2", 5 / 3, "20 links join 13 parts"),
        ("1x1", float("inf"), "one chip has nothing to sum"),
        ("1x2", 1.0, ""),
    ],
)
def test_a_cut_tighter_than_single_chips_is_found_and_named(text: str, value: float, reason: str) -> None:
    limit = bound(Mesh.parse(text))
    assert limit.value == pytest.approx(value)
    assert reason in limit.reason


def test_pieces_have_no_bound() -> None:
    with pytest.raises(Disconnected, match=r"2 disconnected components of 6, 3 chips") as caught:
        bound(Mesh.parse("3x4 -3x1@0,1"))
    assert caught.value.sizes == (6, 3)
