"""Roots on every chip: the same links, the same loads, and a share of the sums for each chip."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import meshmend as mm
from meshmend import Mesh, PlanError, verify
from meshmend.mesh.executors.reference import allreduce
from meshmend.mesh.planners import ALGORITHMS, roots
from meshmend.mesh.planners.plan import Plan, depths, largest_share, parents_of
from meshmend.mesh.planners.roots import _farthest, spread_roots
from meshmend.mesh.schedule import Schedule
from tests.strategies import meshes


@settings(max_examples=30, deadline=None)
@given(meshes(6))
def test_every_chip_holds_its_share_and_no_link_carries_more(mesh: Mesh) -> None:
    before = ALGORITHMS["trees"](mesh)
    after = spread_roots(before)
    verify(after)
    held = np.bincount(after.root, after.share, minlength=mesh.size)
    assert held[mesh.live] == pytest.approx(1 / len(mesh.live))
    assert largest_share(after) == pytest.approx(1 / len(mesh.live))
    assert after.load == pytest.approx(before.load)
    links = {frozenset(_links(before, flow)) for flow in range(len(before))}
    assert all(frozenset(_links(after, flow)) in links for flow in range(len(after))), "trees stay as they are"


def _links(plan: Plan, flow: int) -> list[frozenset[int]]:
    parent = parents_of(plan.mesh, plan.up[[flow]])[0]
    return [frozenset((chip, int(parent[chip]))) for chip in np.flatnonzero(parent >= 0).tolist()]


@pytest.mark.parametrize("text", ["5x4 -chip@1,1", "3x3x3 wrap=xyz -chip@0,0,0", "4x4 ~0.5@0,0:0,1"])
def test_the_sums_are_right_and_the_schedule_is_proved(text: str) -> None:
    plan = spread_roots(mm.plan(text, algorithm="trees"))
    schedule = plan.schedule(3 * len(plan))
    verify(schedule)
    parts = np.random.default_rng(1).integers(0, 1000, (len(plan.mesh.live), 500))
    assert np.array_equal(allreduce(plan, parts), np.broadcast_to(parts.sum(0), parts.shape))
    assert _held(schedule).max() <= -(-schedule.chunks // len(plan.mesh.live))


def _held(schedule: Schedule) -> np.ndarray:
    """How many chunks each chip broadcasts: before a chunk is first copied, it is whole at its flow's root alone."""
    copies = np.flatnonzero(schedule.copy)
    first = copies[np.unique(schedule.chunk[copies], return_index=True)[1]]
    return np.bincount(schedule.sender[first], minlength=schedule.mesh.size)


@settings(max_examples=20, deadline=None)
@given(meshes(5), st.sampled_from([None, 1e5, 1e7]), st.integers(1, 300))
def test_schedules_round_no_root_up_by_more_than_one_chunk(mesh: Mesh, nbytes: float | None, any_number: int) -> None:
    plan, chips = spread_roots(ALGORITHMS["trees"](mesh)), len(mesh.live)
    assume(chips > 1)
    by_rule = plan.schedule(nbytes=nbytes)
    verify(by_rule)
    assert set(_held(by_rule)[mesh.live].tolist()) == {by_rule.chunks // chips}, "by rule each holds exactly 1/N"
    given_number = plan.schedule(any_number)
    verify(given_number)
    assert _held(given_number).max() <= -(-any_number // chips)


@settings(max_examples=15, deadline=None)
@given(meshes(5))
def test_the_farthest_chip_is_as_far_as_the_depth_from_there(mesh: Mesh) -> None:
    plan = ALGORITHMS["trees"](mesh)
    far = _farthest(parents_of(mesh, plan.up), depths(mesh, plan.up))
    after = spread_roots(plan)
    least = far[:, mesh.live].min(0)
    for flow, root in enumerate(after.root):
        depth = int(depths(mesh, after.up[[flow]]).max())
        assert depth in far[:, root]
        assert depth >= least[mesh.place[root]]


def test_large_machines_have_roots_near_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roots, "MOST_ROOTS", 20)
    plan = mm.plan("8x8 -chip@0,0", algorithm="trees")
    few = spread_roots(plan)
    assert len(set(few.root.tolist())) == 20
    assert largest_share(few) == pytest.approx(1 / 20)
    monkeypatch.undo()
    assert few.hops <= spread_roots(plan).hops


def test_the_reason_is_that_of_the_plan_before() -> None:
    plan = mm.plan("4x4", algorithm="trees")
    assert spread_roots(plan).why == f"{plan.why} (before its roots were spread)"


def test_a_ring_keeps_its_roots() -> None:
    with pytest.raises(PlanError, match="reduce and broadcast over different links; use trees"):
        spread_roots(mm.plan("4x4", algorithm="ring"))
