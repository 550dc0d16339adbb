"""The whole way on any mesh: plan, verify, schedule, verify, and sums that are right to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshmend import ALGORITHMS, Mesh, PlanError, bound, local, plan, verify
from tests.strategies import meshes, numbers


@settings(max_examples=150, deadline=None)
@given(meshes(), st.integers(1, 150), st.sampled_from([1, 2, 5]), st.integers(1, 40))
def test_any_mesh_is_planned_within_one_percent_and_sums_exactly(mesh: Mesh, chunks: int, hop: int, width: int) -> None:
    made = plan(mesh, algorithm="trees")
    verify(made)
    assert made.efficiency >= 0.99
    assert made.algbw <= bound(mesh).value * (1 + 1e-9)
    schedule = made.schedule(chunks, hop=hop)
    verify(schedule)
    parts = numbers(hop, len(mesh.live), width)
    sums = local.allreduce(schedule, parts)
    assert np.array_equal(sums, np.broadcast_to(parts.sum(0), parts.shape))


@settings(max_examples=60, deadline=None)
@given(meshes(9), st.sampled_from(["ring", "rowpair", "rowcol", "auto"]), st.sampled_from([1, 3]))
def test_every_algorithm_is_right_where_it_exists(mesh: Mesh, algorithm: str, hop: int) -> None:
    try:
        made = plan(mesh, 1e6, algorithm)
    except PlanError:
        return
    verify(made)
    assert made.algbw <= bound(mesh).value * (1 + 1e-9)
    schedule = made.schedule(len(made) + 7, hop=hop)
    verify(schedule)
    parts = numbers(hop, len(mesh.live), 11)
    assert np.array_equal(local.allreduce(schedule, parts), np.broadcast_to(parts.sum(0), parts.shape))


@pytest.mark.parametrize("text", ["16x32 -4x2@6,12", "12x12 wrap=xy -3x3@4,4 -chip@0,0 -link@0,5:0,6"])
@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_large_meshes(text: str, algorithm: str) -> None:
    mesh = Mesh.parse(text)
    try:
        made = plan(mesh, algorithm=algorithm)
    except PlanError:
        assert algorithm != "trees"
        return
    verify(made)
    verify(made.schedule())


def test_floats_and_shapes_survive() -> None:
    mesh = Mesh.parse("4x5 -chip@1,1")
    parts = np.random.default_rng(0).normal(size=(19, 3, 7)).astype(np.float32)
    sums = local.allreduce(plan(mesh), parts)
    assert sums.shape == parts.shape
    assert sums.dtype == np.float32
    assert np.allclose(sums, parts.sum(0), atol=1e-5)
    assert (sums == sums[0]).all()


def test_parts_must_match_the_live_chips() -> None:
    with pytest.raises(PlanError, match="16 parts were given for 15 live chips"):
        local.allreduce(plan("4x4 -chip@1,1"), np.zeros((16, 4)))
