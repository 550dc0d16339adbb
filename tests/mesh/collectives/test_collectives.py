"""Reduce-scatter, all-gather, broadcast and all-to-all: right on every mesh, and as fast as their cuts allow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshmend as mm
from meshmend.mesh.collectives.bounds import crossing as crossing_of
from tests.mesh.collectives.checks import crossing, expected, least_over_all_cuts, parts_for
from tests.strategies import all_meshes

NAMES = [name for name in mm.COLLECTIVES if name != "all_reduce"]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None)
@given(mesh=all_meshes(4), hop=st.sampled_from([None, 2]))
def test_every_mesh_is_planned_proved_and_executed(name: str, mesh: mm.Mesh, hop: int | None) -> None:
    plan = mm.plan(mesh, collective=name)
    mm.verify(plan)
    schedule = plan.schedule(hop=hop)
    proof = mm.verify(schedule)
    parts = parts_for(plan)
    got = mm.local.run(schedule, parts, proof=proof)
    assert np.array_equal(got, expected(plan, parts, int(plan.root[0])))
    assert plan.efficiency <= 1 + 1e-9
    assert len(schedule) == 0 or schedule.algbw <= plan.bound.value * (1 + 1e-9)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["2x3", "3x3 -chip@1,1", "1x5", "3x3 wrap=xy ~0.5@0,0:0,1", "2x2x2 -link@0,0,0:0,1,0"])
def test_the_bound_is_the_least_of_all_cuts(name: str, text: str) -> None:
    plan = mm.plan(text, collective=name)
    least = least_over_all_cuts(plan.mesh, name, int(plan.root[0]))
    assert plan.bound.fraction is not None
    assert plan.bound.fraction <= least if name == "all_to_all" else plan.bound.fraction == least
    assert "link" in plan.bound.reason


@settings(max_examples=40, deadline=None)
@given(mesh=all_meshes(4))
def test_the_cut_of_a_bound_can_be_counted_again(mesh: mm.Mesh) -> None:
    bound, n = mm.plan(mesh, collective="all_gather").bound, len(mesh.live)
    if n == 1:
        assert bound.value == np.inf
        return
    inside = int((bound.part == 1).sum())
    assert bound.fraction == crossing(mesh, bound.part) * n / (n - inside)
    assert crossing_of(mesh, bound.part) == crossing(mesh, bound.part)


@settings(max_examples=40, deadline=None)
@given(mesh=all_meshes(5))
def test_a_broadcast_of_even_links_reaches_its_least_cut(mesh: mm.Mesh) -> None:
    plan = mm.plan(mesh, collective="broadcast")
    if mesh.even and len(mesh.live) > 1:
        assert plan.efficiency == pytest.approx(1)
        assert len(plan) == plan.bound.fraction


@pytest.mark.parametrize(
    ("text", "gather", "exchange"),
    [
        ("8x8", 0.999, 0.95),
        ("8x8 -2x2@2,2", 0.99, 0.9),
        ("8x8 wrap=xy", 0.999, 0.95),
        ("8x8 wrap=xy -chip@3,3", 0.99, 0.95),
        ("12x12 -4x2@4,5", 0.99, 0.9),
        ("4x4x4 wrap=xyz -chip@1,1,1", 0.999, 0.95),
        ("galaxy ~0.5@3,1:3,2", 0.99, 0.95),
    ],
)
def test_how_much_of_the_bound_is_reached(text: str, gather: float, exchange: float) -> None:
    for name in ("all_gather", "reduce_scatter"):
        assert mm.plan(text, collective=name).efficiency >= gather
    assert mm.plan(text, collective="all_to_all").efficiency >= exchange


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("text", "dead"),
    [
        ("4x4 ~0.01@0,0:0,1", "4x4 -link@0,0:0,1"),
        ("4x4 ~0.1@0,0:0,1", "4x4 -link@0,0:0,1"),
        ("6x6 -chip@5,5 ~0.05@3,3:3,4 ~0.01@0,0:0,1", "6x6 -chip@5,5 -link@3,3:3,4 -link@0,0:0,1"),
    ],
)
def test_a_slow_link_is_never_worse_than_a_dead_one(name: str, text: str, dead: str) -> None:
    slow = mm.plan(text, collective=name)
    mm.verify(slow)
    mm.verify(slow.schedule())
    assert slow.mesh == mm.Mesh.parse(text)
    assert slow.algbw >= mm.plan(dead, collective=name).algbw - 1e-9
    assert slow.efficiency >= (0.75 if name == "all_to_all" else 0.85)


@pytest.mark.parametrize("text", ["4x4", "4x4 wrap=xy", "6x6 -2x2@2,2", "4x4x4 wrap=xyz"])
def test_an_all_reduce_is_never_slower_than_a_reduce_scatter_and_an_all_gather(text: str) -> None:
    for nbytes in (1e6, 64e6):
        both = sum(
            mm.simulate(mm.plan(text, collective=name), nbytes).seconds for name in ("reduce_scatter", "all_gather")
        )
        assert mm.simulate(mm.plan(text, nbytes), nbytes).seconds <= 1.04 * both


@pytest.mark.parametrize("name", NAMES)
def test_a_large_payload_takes_what_the_plan_says(name: str) -> None:
    plan = mm.plan("6x6 -2x2@2,2", collective=name)
    flight = mm.simulate(plan, 256e6)
    assert 0.9 * plan.algbw <= flight.algbw <= plan.algbw * (1 + 1e-9)
    timed = plan.schedule(nbytes=256e6)
    assert timed.seconds(256e6) == pytest.approx(flight.seconds, rel=0.03)
    assert flight.use().max() <= 1 + 1e-9
    with pytest.raises(mm.SimulateError, match="all-reduce over all chips"):
        flight.parts()
    with pytest.raises(mm.SimulateError, match="chunks=7: this schedule has"):
        mm.simulate(timed, 256e6, chunks=7)


def test_a_broadcast_begins_where_it_is_told() -> None:
    plan = mm.plan("4x5 -chip@1,1", collective="broadcast", root=(3, 4))
    assert set(plan.root.tolist()) == {plan.mesh.index((3, 4))}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"collective": "all_gater"}, "unknown collective 'all_gater'; choose from all_reduce, .* all_gather"),
        ({"collective": "broadcast", "root": (1, 1)}, "the root 1,1 is dead: give a live chip"),
        ({"collective": "broadcast", "root": (9, 1)}, "outside the 4x4 mesh"),
        (
            {"collective": "all_gather", "root": (0, 0)},
            r"no root to choose: leave --root out \(given: 0,0\)",
        ),
        ({"collective": "all_gather", "groups": mm.tile(2, 2)}, "all_gather is planned for all live chips"),
        (
            {"collective": "all_gather", "algorithm": "ring"},
            "algorithm='ring' supports only all-reduces over all chips",
        ),
        ({"groups": "2x2"}, r"groups='2x2': give the tile .*mm.tile\(2, 2\)"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_a_sentence(options: dict[str, Any], says: str) -> None:
    with pytest.raises(mm.MeshmendError, match=says) as error:
        mm.plan("4x4 -chip@1,1", **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["reduce_scatter", "all_gather", "all_to_all"])
def test_more_chips_than_tables_fit_are_refused(name: str) -> None:
    with pytest.raises(mm.PlanError, match="trees for each of 65,536 chips, but at most 4,096"):
        mm.plan("256x256", collective=name)


@pytest.mark.parametrize("chunks", [0, -1, True, "8"])
def test_chunks_that_are_no_number_are_refused(chunks: Any) -> None:
    with pytest.raises(mm.PlanError, match="give a whole number of at least 1"):
        mm.plan("2x2", collective="all_gather").schedule(chunks)


def test_parts_of_another_shape_are_refused() -> None:
    for name, shape, says in (
        ("all_gather", (3, 4), "give (4, n)"),
        ("all_to_all", (4, 3), "give (4, 4, n)"),
        ("reduce_scatter", (4, 6), "give a multiple of 4"),
    ):
        with pytest.raises(mm.PlanError) as error:
            mm.local.run(mm.plan("2x2", collective=name), np.ones(shape))
        assert says in str(error.value)


def test_paths_beyond_count_are_refused() -> None:
    plan = mm.plan("17x17", collective="all_to_all")
    with pytest.raises(mm.PlanError, match=r"paths of an all_to_all .* too many to schedule"):
        plan.schedule()


def test_other_executors_do_not_take_it() -> None:
    schedule = mm.plan("2x2", collective="all_gather").schedule()
    proof = mm.verify(schedule)
    assert proof.covers(schedule) and not proof.covers(schedule.table)
    with pytest.raises(mm.VerifyError):
        mm.verify(schedule.table)
