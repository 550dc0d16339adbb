"""What a schedule is for each chip."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshmend import Mesh, PlanError, local, plan
from meshmend.mesh.executors.slots import moves, neighbours, turns
from tests.strategies import meshes, numbers


@settings(max_examples=40, deadline=None)
@given(meshes(6), st.integers(1, 40), st.sampled_from([2, 3]))
def test_tables_say_what_the_schedule_says(mesh: Mesh, chunks: int, hop: int) -> None:
    schedule = plan(mesh, algorithm="trees").schedule(chunks, hop=hop)
    parts = numbers(hop, len(mesh.live), chunks)
    slots = turns(schedule)
    table = moves(schedule, slots + 3)
    held = np.concatenate([parts, np.zeros_like(parts[:, :1])], 1)
    here = np.arange(len(held))[:, None]
    taken = came = np.zeros((len(held), 4), held.dtype)
    for slot in range(slots):
        goes = np.zeros_like(taken)
        for way, pairs in enumerate(neighbours(mesh)):
            for sender, receiver in pairs:
                goes[receiver, way] = taken[sender, way]
        for way in range(4):
            at, copy = (here[:, 0], table.land[:, slot, way]), table.copy[:, slot, way]
            held[at] = np.where(copy, came[:, way], held[at] + came[:, way])
        taken, came = held[here, table.send[:, slot]], goes
    assert np.array_equal(held[:, :-1], local.allreduce(schedule, parts))
    assert not held[:, -1].any(), "the spare row was used"
    assert (table.send[:, slots:] == chunks).all() and (table.land[:, slots:] == chunks).all()


def test_a_schedule_without_time_on_the_way_is_refused() -> None:
    with pytest.raises(PlanError, match="hop=1 cannot run here"):
        moves(plan("2x2").schedule(4), 16)


@given(meshes(8))
def test_only_live_neighbours_are_joined(mesh: Mesh) -> None:
    for way, pairs in enumerate(neighbours(mesh)):
        chips = [(mesh.live[a], mesh.live[b]) for a, b in pairs]
        assert all(mesh.neighbour[a, way] == b for a, b in chips)
        assert len(chips) == (mesh.neighbour[:, way] >= 0).sum()
