"""Staged plans: right sums on any intact mesh, fewer hops than trees on tori, never under the floor, well predicted."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshmend as mm
from meshmend.errors import PlanError, SimulateError
from meshmend.mesh.executors.reference import allreduce
from meshmend.mesh.planners.cost import diameter
from meshmend.mesh.planners.floor import farthest, floor
from meshmend.mesh.staged import StagedPlan, best_staged, staged
from meshmend.mesh.staged.plan import chunks_for, seconds
from tests.strategies import meshes

TORI = ("8x8 wrap=xy", "4x4x4 wrap=xyz", "6x9 wrap=xy")


@st.composite
def spaced(draw: st.DrawFn) -> StagedPlan:
    """A staged plan of a small mesh or torus, with any distances between roots."""
    sides = draw(st.lists(st.integers(1, 5), min_size=2, max_size=3).filter(lambda sides: max(sides) > 1))
    wrap = "".join(axis for axis, side in zip("xyz", sides, strict=False) if side > 2 and draw(st.booleans()))
    mesh = mm.Mesh.parse("x".join(map(str, sides)) + f" wrap={wrap}" * bool(wrap))
    gaps = [draw(st.integers(1, side + 1)) for side in sides if side > 1]
    return staged(mesh, gaps)


@settings(max_examples=40, deadline=None)
@given(spaced(), st.integers(1, 3), st.sampled_from([None, 1e3, 1e6]))
def test_every_chip_gets_the_sum(plan: StagedPlan, each: int, nbytes: float | None) -> None:
    mm.verify(plan)
    schedule = plan.schedule(each * len(plan), nbytes=nbytes)
    proof = mm.verify(schedule)
    parts = np.random.default_rng(each).integers(-99, 99, (len(plan.mesh.live), 37))
    assert (allreduce(schedule, parts, proof=proof) == parts.sum(0)).all()
    assert schedule.slots >= diameter(plan.mesh) * schedule.table.hop


@pytest.mark.parametrize("text", TORI)
def test_close_roots_take_the_diameter_and_trees_twice_that(text: str) -> None:
    mesh = mm.Mesh.parse(text)
    assert staged(mesh, [1] * len(mesh.dims)).hops == diameter(mesh)
    assert mm.plan(mesh, 1e3).hops == 2 * diameter(mesh)
    made = mm.plan(mesh, 1e3, staged=True)
    assert isinstance(made, StagedPlan)
    assert "staged" in made.why
    assert "hops" in str(made)
    assert mm.simulate(made, 1e3).seconds < 0.55 * mm.simulate(mm.plan(mesh, 1e3), 1e3).seconds


@pytest.mark.parametrize("text", TORI)
@pytest.mark.parametrize("nbytes", [1e3, 30e3, 300e3, 3e6])
def test_predicted_clock_and_simulator_agree_and_respect_the_floor(text: str, nbytes: float) -> None:
    plan = best_staged(mm.Mesh.parse(text), nbytes)
    assert plan is not None
    schedule = plan.schedule(nbytes=nbytes)
    assert len(schedule.flow) == chunks_for(plan, nbytes)
    flown = mm.simulate(schedule, nbytes).seconds
    assert flown <= schedule.seconds(nbytes) * (1 + 1e-9)
    assert flown == pytest.approx(seconds(plan, nbytes), rel=0.1)
    assert flown >= floor(plan.mesh, nbytes).seconds * (1 - 1e-9)


def test_large_payloads_still_take_trees_and_all_times_grow() -> None:
    assert not isinstance(mm.plan("8x8 wrap=xy", 256e6, staged=True), StagedPlan)
    times = [mm.simulate(mm.plan("4x4x4 wrap=xyz", 2**power, staged=True), 2**power).seconds for power in range(10, 23)]
    assert all(after >= 0.98 * before for before, after in itertools.pairwise(times))


@settings(max_examples=30, deadline=None)
@given(meshes(6), st.floats(3, 7).map(lambda power: 10**power))
def test_no_plan_is_faster_than_the_floor(mesh: mm.Mesh, nbytes: float) -> None:
    least = floor(mesh, nbytes)
    assert mm.simulate(mm.plan(mesh, nbytes), nbytes).seconds >= least.seconds * (1 - 1e-9)
    if len(mesh.live) > 1:
        _, hops = farthest(mesh)
        assert diameter(mesh) <= hops.max() <= diameter(mesh) + 2
        assert least.seconds >= hops.max() * 1e-6
        assert least.reason


def test_the_floor_of_an_intact_mesh_is_that_of_a_search() -> None:
    for text in ("5x7", "6x6 wrap=x", "4x5x3 wrap=xz"):
        mesh = mm.Mesh.parse(text)
        searched = farthest(mesh.fail(mesh.chip(0)))  # a search, though around a hole
        whole = dict(zip(*(array.tolist() for array in farthest(mesh)), strict=True))
        assert all(hops >= whole[chip] - 1 for chip, hops in zip(*(a.tolist() for a in searched), strict=True))
    assert floor(mm.Mesh(16, 32), 8e6).seconds == pytest.approx(46e-6 + 8e6 / 80e9 / 2)
    assert "0,0 is 46 hops" in floor(mm.Mesh(16, 32), 8e6).reason


def test_what_cannot_be_staged_is_refused_in_a_sentence() -> None:
    with pytest.raises(PlanError, match="intact"):
        staged(mm.Mesh.parse("4x4 -chip@0,0"), (1, 1))
    with pytest.raises(PlanError, match="give 2 distances"):
        staged(mm.Mesh(4, 4), (1,))
    with pytest.raises(PlanError, match="one chip"):
        staged(mm.Mesh(1, 1), ())
    with pytest.raises(PlanError, match="staged=True and algorithm"):
        mm.plan("4x4", algorithm="ring", staged=True)  # type: ignore[call-overload]
    with pytest.raises(PlanError, match="omit it for other collectives"):
        mm.plan("4x4", collective="broadcast", staged=True)  # type: ignore[call-overload]
    with pytest.raises(PlanError, match="whole number"):
        staged(mm.Mesh(4, 4), (1, 1)).schedule(0)
    with pytest.raises(PlanError, match="one row per live chip"):
        allreduce(staged(mm.Mesh(3, 3), (1, 1)), np.ones((3, 3)))
    with pytest.raises(SimulateError, match="leave order out"):
        mm.simulate(staged(mm.Mesh(3, 3), (1, 1)), 1e3, order="first-come")
    assert best_staged(mm.Mesh.parse("4x4 -chip@0,0"), 1e3) is None
    assert not isinstance(mm.plan("4x4 -chip@0,0", 1e3, staged=True), StagedPlan)


def test_equal_plans_have_equal_digests_and_others_do_not() -> None:
    a, b = (staged(mm.Mesh(4, 4, (True, True)), (2, 1)) for _ in range(2))
    assert a.digest == b.digest
    assert a.schedule().digest == b.schedule().digest
    assert a.digest != staged(a.mesh, (1, 1)).digest
    assert replace(a, label="other").digest == a.digest
