"""Groups: the sums of all peers at once, over relays that only forward."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import meshmend as mm
from meshmend.mesh.collectives import group_sums
from meshmend.mesh.collectives.group_sums import pack_groups
from tests.mesh.collectives.checks import crossing, expected, parts_for


@st.composite
def tiled(draw: st.DrawFn) -> tuple[mm.Mesh, mm.Tile]:
    """A mesh that tiles divide, with holes."""
    sides = draw(st.integers(2, 3))
    tile = mm.tile(*(draw(st.integers(1, 3)) for _ in range(sides)))
    many = [draw(st.integers(1, 4 if sides == 2 else 3)) for _ in range(sides)]
    dims = [t * m for t, m in zip(tile.dims, many, strict=True)]
    assume(tile.size > 1 and np.prod(many) > 1 and np.prod(dims) <= 100 and (*dims, 2)[2] > 1)
    wrap = tuple(side > 2 and draw(st.booleans()) for side in dims)
    mesh = mm.Mesh(dims[0], dims[1], wrap, layers=(*dims, 1)[2])
    rate = draw(st.sampled_from([0.0, 0.0, 0.03, 0.08]))
    seed = draw(st.integers(0, 2**32 - 1))
    chips = min(int(rate * mesh.size), mesh.size - 1)
    return mesh.fail_random(seed, chips=chips, links=rate / 2).largest(), tile


@settings(max_examples=80, deadline=None)
@given(case=tiled())
def test_every_group_gets_its_sum(case: tuple[mm.Mesh, mm.Tile]) -> None:
    mesh, tile = case
    try:
        plan = mm.plan(mesh, groups=tile)
    except mm.PlanError as error:
        assert "\n" not in str(error)
        assert any(words in str(error) for words in ("chips alive", "no route to its peers", "covers all"))
        assert not mesh.intact or tile.size == mesh.size
        return
    mm.verify(plan)
    schedule = plan.schedule()
    mm.verify(schedule)
    parts = parts_for(plan)
    assert np.array_equal(mm.local.run(schedule, parts), expected(plan, parts))
    assert plan.efficiency <= 1 + 1e-9
    # The bound, counted again from its certificate.
    label = plan.bound.part
    needed = sum(len(np.unique(label[plan.group == g])) - 1 for g in range(plan.groups))
    assert plan.bound.fraction == Fraction(crossing(mesh, label)) / needed
    if mesh.intact:
        assert plan.efficiency >= 0.9


@pytest.mark.parametrize(
    ("text", "tile", "algbw", "part"),
    [
        ("8x8", (2, 2), 0.8, 0.999),
        ("32x32", (4, 1), 1.18, 0.99),
        ("16x16 wrap=xy", (2, 2), 1.0, 0.98),
        ("4x4x4 wrap=xyz", (2, 1, 1), 1.5, 0.98),
        ("32x16 wrap=y -2x4@12,8", (4, 1), 1.1, 0.93),
    ],
)
def test_what_groups_reach(text: str, tile: tuple[int, ...], algbw: float, part: float) -> None:
    plan = mm.plan(text, groups=mm.tile(*tile))
    mm.verify(plan)
    assert plan.algbw >= algbw
    assert plan.efficiency >= part


def test_all_groups_at_once_beat_one_after_another() -> None:
    mesh, tile, nbytes = mm.Mesh.parse("8x8"), mm.tile(4, 1), 64e6
    at_once = mm.plan(mesh, groups=tile)
    alone = []
    for group in range(tile.size):
        only = np.where(tile.groups(mesh) == group, 0, -1).astype(np.int32)
        alone.append(pack_groups(mesh, only, at_once.bound))
        mm.verify(alone[-1])
    together = mm.simulate(at_once, nbytes).seconds
    assert sum(mm.simulate(plan, nbytes).seconds for plan in alone) >= 1.5 * together


def test_a_broken_tile_is_out_and_its_live_chips_forward() -> None:
    # Rows 8 and 9 of four columns are dead: rows 10 and 11 of those tiles are on the way from left to right.
    plan = mm.plan("16x16 -2x4@8,6", groups=mm.tile(4, 1))
    broken = plan.mesh.alive & (plan.group < 0)
    assert {plan.mesh.chip(i) for i in np.flatnonzero(broken)} == {(r, c) for r in (10, 11) for c in range(6, 10)}
    assert (plan.up[:, broken] >= 0).any()
    assert "8 live chips of broken tiles only forward" in plan.why


def test_groups_are_positions_of_tiles() -> None:
    assert mm.tile(2, 2).groups(mm.Mesh(4, 6)).reshape(4, 6).tolist() == [
        [0, 1, 0, 1, 0, 1], [2, 3, 2, 3, 2, 3], [0, 1, 0, 1, 0, 1], [2, 3, 2, 3, 2, 3],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "tile", "says"),
    [
        ("8x8", (3, 2), "tiles of 3x2 do not divide 8x8: 8 rows are not a multiple of 3, so give a divisor of 8"),
        ("8x8", (1, 1), "a tile of one chip makes one group of all chips, a plain all-reduce: leave groups out"),
        ("4x4", (4, 4), "one tile of 4x4 covers all of 4x4, so that no chip has a peer: give a smaller tile"),
        ("8x8", (2, 2, 2), "a tile of 2x2x2 has 3 sides, and 8x8 has 2: give rows, cols"),
        ("4x4 -chip@0,0 -chip@0,2 -chip@2,0", (2, 2), "1 has all chips alive, and a sum needs at least 2"),
        ("4x1 -link@0,0:1,0", (2, 1), "2 disconnected components"),
    ],
)
def test_tiles_that_do_not_fit_are_refused_in_a_sentence(text: str, tile: tuple[int, ...], says: str) -> None:
    with pytest.raises(mm.MeshmendError) as error:
        mm.plan(text, groups=mm.tile(*tile))
    assert says in str(error.value)


def test_a_link_that_many_groups_share_has_a_part_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_sums, "FINEST", 5)
    plan = mm.plan("1x20", groups=mm.tile(1, 10))
    mm.verify(plan)
    assert plan.efficiency == pytest.approx(1)


def test_a_bound_over_slow_links_counts_what_they_are_worth() -> None:
    slow = "4x4 " + " ".join(f"~0.5@{row},1:{row},2" for row in range(4))
    assert "links worth 6 full ones join" in mm.plan(slow, groups=mm.tile(2, 2)).bound.reason


@pytest.mark.parametrize("dims", [(2,), (2, 2, 2, 2), (2, 0), (2.0, 2), ("2", 2), (True, 2)])
def test_what_is_no_tile_is_refused(dims: Any) -> None:
    with pytest.raises(mm.PlanError, match=r"tile\("):
        mm.tile(*dims)
