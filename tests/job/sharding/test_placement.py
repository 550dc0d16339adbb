"""Slices, who should hold them, and how holdings get there: properties for any leaves, ranks and deaths."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshmend.job.reduction.exact import BLOCK, Exact
from meshmend.job.sharding import Holdings, cut, placed, plan_round
from meshmend.job.sharding import slices as slices_module
from meshmend.job.sharding.placement import scores
from meshmend.job.sharding.slices import how_many

LEAVES = st.lists(st.integers(0, 9000), max_size=8)
RANKS = st.sets(st.integers(0, 200), min_size=1, max_size=16)
BUDDIES = st.integers(0, 3)


@given(LEAVES, st.integers(1, 40))
def test_slices_cover_the_state_on_borders_of_exact_blocks(leaves: list[int], count: int) -> None:
    slicing, exact = cut(leaves, count), Exact(leaves, lanes=1)
    assert slices_module.BLOCK == BLOCK
    borders = [*exact._bounds.tolist()]
    assert slicing.bounds[0] == 0 and slicing.bounds[-1] == sum(leaves)
    assert list(slicing.bounds) == sorted(set(slicing.bounds))
    assert slicing.count <= count
    for bound, block in zip(slicing.bounds, slicing.blocks, strict=True):
        assert borders[block] == bound
    for which in range(slicing.count):
        numbers = slicing.numbers(which)
        assert numbers.stop - numbers.start < sum(leaves) / count + 2 * BLOCK
        assert slicing.in_blocks(which).stop > slicing.in_blocks(which).start


@pytest.mark.parametrize("leaves", [[], [0], [0, 0, 5, 0]])
def test_states_of_next_to_nothing_are_cut_too(leaves: list[int]) -> None:
    assert cut(leaves).count == (1 if sum(leaves) else 0)


@pytest.mark.parametrize(("leaves", "count", "block"), [([-1], 4, 1024), ([1], 0, 1024), ([1], 4, 0)])
def test_sizes_that_make_no_sense_are_refused(leaves: list[int], count: int, block: int) -> None:
    with pytest.raises(ValueError):
        cut(leaves, count, block)


@given(st.integers(1, 60), RANKS, BUDDIES)
def test_owner_and_buddies_are_distinct_and_as_many_as_asked(count: int, ranks: set[int], buddies: int) -> None:
    for holders in placed(count, ranks, buddies):
        assert len(set(holders)) == len(holders) == min(buddies + 1, len(ranks))
        assert set(holders) <= ranks


@given(st.integers(1, 60), RANKS, BUDDIES, st.randoms())
def test_a_death_moves_only_the_slices_of_the_dead(count: int, ranks: set[int], buddies: int, dice) -> None:
    dead = dice.choice(sorted(ranks))
    before, after = placed(count, ranks, buddies), placed(count, ranks - {dead}, buddies)
    for old, new in zip(before, after, strict=True):
        left = tuple(rank for rank in old if rank != dead)
        assert new[: len(left)] == left
        assert dead in old or new == old


@settings(max_examples=15)
@given(RANKS, BUDDIES)
def test_shares_are_even(ranks: set[int], buddies: int) -> None:
    """Each slice picks its holders by chance, so a rank's share is binomial: within five standard deviations."""
    count = 1024
    holdings = Holdings(placed(count, ranks, buddies))
    share = min(1.0, (buddies + 1) / len(ranks))
    for rank in ranks:
        assert abs(len(holdings.held_by(rank)) - count * share) <= 5 * math.sqrt(count * share * (1 - share))


@pytest.mark.parametrize(("workers", "most"), [(4, 0.55), (8, 0.30)])
def test_the_largest_share_of_a_usual_run_is_as_promised(workers: int, most: float) -> None:
    slicing = cut([25_000_000])
    holdings = Holdings(placed(slicing.count, range(workers), 1))
    shares = [
        sum(slicing.numbers(which).stop - slicing.numbers(which).start for which in holdings.held_by(rank))
        for rank in range(workers)
    ]
    assert max(shares) <= most * slicing.bounds[-1]


def test_all_processes_find_the_same_scores() -> None:
    """Whatever the seed of Python's own hashes is."""
    code = "from meshmend.job.sharding.placement import scores; print(scores(7, 5))"
    found = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert found == [f"{scores(7, 5)}\n"] * 2


@settings(max_examples=20)
@given(st.integers(1, 40), RANKS, BUDDIES, st.integers(1, 4), st.data())
def test_holdings_reach_the_placement_in_a_bounded_number_of_rounds(
    count: int, ranks: set[int], buddies: int, most: int, data: st.DataObject
) -> None:
    """From any holdings in which every slice has a copy; no round takes a copy away before the others have theirs."""
    some = st.sets(st.sampled_from(sorted(ranks)), min_size=1)
    held = [data.draw(some) for _ in range(count)]
    holdings = Holdings.of(count, {rank: {n for n in range(count) if rank in held[n]} for rank in ranks})
    wanted = Holdings(placed(count, ranks, buddies))
    missing = sum(len(set(w) - set(h)) for w, h in zip(wanted.holders, holdings.holders, strict=True))
    for _ in range(missing + 1):
        plan = plan_round(holdings, ranks, buddies, most)
        assert all(len(plan.fills_to(rank)) <= most for rank in ranks)
        assert all(sum(fill.source == rank for fill in plan.fills) <= most for rank in ranks)
        for fill in plan.fills:
            assert fill.source in holdings.holders[fill.slice] and fill.target not in holdings.holders[fill.slice]
            assert fill.target in wanted.holders[fill.slice]
        for before, takers, after in zip(holdings.holders, plan.takers.holders, plan.after.holders, strict=True):
            assert set(before) <= set(takers) and set(after) <= set(takers)
            assert len(after) >= min(len(before), buddies + 1, len(ranks))
        if not plan.fills:
            break
        holdings = plan.after
    assert plan_round(holdings, ranks, buddies, most).after == wanted


def test_slices_with_one_copy_are_filled_first() -> None:
    holders = Holdings.of(4, {0: {0, 1, 2, 3}, 1: {0, 1, 2}, 2: set()})
    plan = plan_round(holders, {0, 1, 2}, buddies=2, most=1)
    assert plan.fills[0].slice == 3
    assert holders.with_fewer(2) == 1


def test_a_newcomer_is_filled_by_several() -> None:
    before = Holdings(placed(60, range(4), 1))
    held = {rank: before.held_by(rank) for rank in range(4)}
    plan = plan_round(Holdings.of(60, {**held, 4: ()}), range(5), buddies=1, most=6)
    assert len(plan.fills_to(4)) == 6 and len({fill.source for fill in plan.fills_to(4)}) == 4


def test_a_slice_without_holders_is_named() -> None:
    assert Holdings.of(3, {0: {0}, 1: {2}}).lost == (1,)


@pytest.mark.parametrize(
    ("size", "slices"), [(1, 64), (10**6, 64), (5_000_000, 305), (25_000_000, 1024), (10**9, 1024)]
)
def test_small_states_have_fewer_slices(size: int, slices: int) -> None:
    assert how_many(size) == slices
