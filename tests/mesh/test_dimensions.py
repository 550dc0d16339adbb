"""Three dimensions and links of different speeds, through every stage from the bound to sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshmend as mm
from meshmend import Mesh, MeshError, PlanError, VerifyError, local, plan, simulate, verify
from meshmend.mesh.planners.cost import seconds
from meshmend.mesh.planners.trees import NEAR_BOUND, trees
from meshmend.mesh.schedule import Schedule
from tests.strategies import all_meshes, numbers

TABLE = [
    "4x4x4 wrap=xyz", "4x4x4", "2x4x4", "2x2x4", "4x4x4 wrap=xyz -host@0,0,0", "8x8x8 wrap=xyz -2x2x1@0,0,3",
    "4x4x8 wrap=xyz -cube@0,0,0", "trn2 -chip@0,0", "trn2-ultra -chip@1,1,1", "8x8 ~0.5@3,4:3,5", "8x8 ~3/4@3,4:3,5",
    "8x8 -2x2@2,2 ~0.5@0,0:0,1 ~0.75@5,5:6,5", "galaxy ~0.5@y", "6x6 ~0.75@3,3:4,3 ~0.5@3,3:3,4 ~0.25@0,0:0,1",
    "4x4 ~0.123@1,1:1,2",
]  # fmt: skip


@pytest.mark.parametrize("text", TABLE)
def test_the_bound_is_reached(text: str) -> None:
    mesh = Mesh.parse(text)
    made = plan(mesh, algorithm="trees")
    verify(made)
    assert 0.99 <= made.efficiency <= 1 + 1e-9
    assert made.depth <= 2 * trees(mesh, 1).depth + 2


@settings(max_examples=30, deadline=None)
@given(all_meshes())
def test_any_mesh_is_planned_proved_and_summed(mesh: Mesh) -> None:
    made = plan(mesh, algorithm="trees")
    verify(made)
    assert made.efficiency >= (NEAR_BOUND if mesh.even else 0.98) - 1e-9 or made.bound.parts == 1
    for options in ({}, {"even": True, "hop": 2}, {"nbytes": 1e6, "link": "tpu-v3"}):
        schedule = made.schedule(None if "nbytes" in options else len(made) + 3, **options)  # type: ignore[arg-type]
        verify(schedule)
        parts = numbers(1, len(mesh.live), schedule.chunks)
        assert (local.allreduce(schedule, parts) == parts.sum(0)).all()
    assert Mesh.parse(str(mesh)) == mesh


@settings(max_examples=20, deadline=None)
@given(all_meshes(4), st.sampled_from(["schedule", "first-come"]))
def test_the_clock_keeps_to_the_speed_of_each_link(mesh: Mesh, order: str) -> None:
    table = plan(mesh, algorithm="trees").schedule(40)
    if not len(table):
        return
    flight = simulate(table, 1e6, mm.LinkSpeed(1e9, 0), order=order)  # type: ignore[arg-type]
    slot = 1e6 / 40 / 1e9 / max(1, table.pace)
    need = 40 / 1e9 * 1e6 / 40 / 40 / mesh.speed  # seconds of one chunk on each link
    assert np.allclose(flight.service, need)
    if order == "schedule":
        assert flight.seconds <= table.slots * slot * (1 + 1e-9)  # the clock rounds slots up, never down
    work = np.bincount(table.link, flight.service[table.link])
    assert flight.seconds >= work.max() * (1 - 1e-9)


def test_a_schedule_that_hurries_over_a_slow_link_is_refused() -> None:
    mesh = Mesh.parse("2x2 ~0.5@0,0:0,1")
    right = plan(mesh, algorithm="trees").schedule(6)
    verify(right)
    columns = (right.slot, right.link, right.chunk, right.copy)
    whole = Schedule(Mesh.parse("2x2"), 6, right.hop, *columns)
    verify(whole)
    early = plan("2x2", algorithm="trees").schedule(6)
    with pytest.raises(VerifyError, match=r"carries another|before it is there|twice"):
        verify(Schedule(mesh, 6, 1, early.slot, early.link, early.chunk, early.copy, 1))


@pytest.mark.parametrize("text", ["8x8 -2x2@2,2", "8x8 ~0.5@3,4:3,5", "4x4x4 wrap=xyz -host@0,0,3"])
def test_the_prediction_is_near_the_simulation(text: str) -> None:
    made = plan(text, algorithm="trees")
    for nbytes in (64e6,):
        assert seconds(made, nbytes) == pytest.approx(simulate(made, nbytes).seconds, rel=0.05)


def test_a_slow_link_costs_no_more_than_the_bound_says() -> None:
    whole = plan("16x32", algorithm="trees").algbw
    for speed in ("0.5", "0.75"):
        made = plan(f"16x32 ~{speed}@7,15:7,16", algorithm="trees")
        assert made.algbw >= 0.99 * made.bound.value and made.bound.value > 0.998 * whole


@pytest.mark.parametrize("algorithm", ["ring", "rowpair", "rowcol"])
def test_flat_schemes_say_which_dimensions_they_know(algorithm: str) -> None:
    with pytest.raises(PlanError, match=f"{algorithm} plans for meshes of 2 dimensions, and 4x4x4 has 3: use trees"):
        plan("4x4x4", algorithm=algorithm)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("4x4x4 -2x2x1@3,0,0", "covers rows 3 to 4, cols 0 to 1 and layers 0 to 0, outside the 4x4x4 mesh"),
        ("4x4x2 wrap=xyz", "wrap=z joins the ends of a side of 2, .* at least 3 layers"),
        ("4x4x4 -chip@1,1", "a hole is -ROWSxCOLSxLAYERS@ROW,COL,LAYER"),
        ("4x4x4 -board@1,1,1", "-host@R,C,L or -cube@R,C,L"),
        ("4x4 -cube@1,1", "a hole is -ROWSxCOLS@ROW,COL"),
        ("4x4x4 -chip@1,1,4", "rows go from 0 to 3, cols go from 0 to 3 and layers from 0 to 3"),
        ("4x4x4 -link@0,0,0:0,0,2", "one row or one column or one layer apart"),
        ("4x4 ~0@0,0:0,1", "a speed of 0 was given: it is above 0 and at most 1"),
        ("4x4 ~1.5@0,0:0,1", "a speed of 1.5 was given: it is above 0 and at most 1"),
        ("4x4 ~0.12345@0,0:0,1", "finer than thousandths: round it, for example to 0.123"),
        ("4x4 ~0.5@0,0:1,1", "a link joins two neighbouring chips"),
        ("4x4 ~0.5@z", "4x4 has the axes x and y"),
        ("4x4 ~half@0,0:0,1", "a slow link is ~SPEED@CHIP:CHIP"),
        ("4x4 ~1/0@0,0:0,1", "a slow link is ~SPEED@CHIP:CHIP"),
        ("4x4x0", "at least 1 layer, not 0"),
        ("2000x2000x2000", "the most a mesh may have"),
    ],
)
def test_mistakes_are_one_sentence(text: str, words: str) -> None:
    with pytest.raises(MeshError, match=words) as caught:
        Mesh.parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("8x8x8 wrap=xyz -2x2x1@0,0,3", "8x8x8 wrap=xyz -2x2x1@0,0,3"),
        ("8x8x8 wrap=zx".replace("zx", "xz") + " -cube@5,1,7 -chip@0,0,0", "8x8x8 wrap=xz -chip@0,0,0 -4x4x4@4,0,4"),
        ("4x4x1 -2x2x1@0,0,0", "4x4 -2x2@0,0"),
        ("4x4 ~0.50@0,1:0,0 ~3/4@1,1:1,2", "4x4 ~0.5@0,0:0,1 ~0.75@1,1:1,2"),
        ("4x4 ~1/3@y ~1@0,0:0,1", "4x4 ~1/3@y ~1@0,0:0,1"),
        ("4x4 -chip@0,0 ~0.5@0,0:0,1 ~0.5@2,2:2,3 -link@2,2:2,3", "4x4 -chip@0,0 -link@2,2:2,3"),
    ],
)
def test_every_form_is_read_and_written(text: str, written: str) -> None:
    mesh = Mesh.parse(text)
    assert str(mesh) == written
    assert Mesh.parse(written) == mesh and hash(Mesh.parse(written)) == hash(mesh)


def test_more_can_die_and_slow_down() -> None:
    mesh = Mesh.parse("4x4x4 wrap=xyz").fail("-host@0,0,0", (3, 3, 3), ((1, 3, 3), (2, 3, 3)), "~0.5@2,2,2:2,2,3")
    assert str(mesh) == "4x4x4 wrap=xyz -2x2x1@0,0,0 -chip@3,3,3 -link@1,3,3:2,3,3 ~0.5@2,2,2:2,2,3"
    assert mesh.fail_random(3, cubes=0, hosts=1, chips=2, links=3).fail_random(1) is not None
    with pytest.raises(MeshError, match="choose from chips, links, hosts, cubes"):
        mesh.fail_random(3, boards=1)
