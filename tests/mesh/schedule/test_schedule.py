"""Schedules keep the plan's speed, honour latency, and say so when asked for the impossible."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshmend import LinkSpeed, Mesh, PlanError, Schedule, plan, verify
from meshmend.mesh.planners.cost import SMALLEST_CHUNK, chunks_for, hop_slots, seconds
from meshmend.mesh.schedule.schedule import share_out
from meshmend.mesh.schedule.scheduler import Streams, _due, _serve
from tests.strategies import meshes

FAST = LinkSpeed(50 * 2**30, 0.5e-6)


def test_filling_and_draining_cost_little() -> None:
    made = plan("16x32 -4x2@6,12", algorithm="trees")
    schedule = made.schedule(2048)
    verify(schedule)
    assert schedule.algbw >= 0.95 * made.algbw


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("8x8", 800e-6),
        pytest.param("16x32", 850e-6, marks=pytest.mark.explore),
        ("16x32 -4x2@6,12", 880e-6),
        pytest.param("32x32 -4x2@14,15", 900e-6, marks=pytest.mark.explore),
    ],
)
def test_predicted_time_of_64_MiB(text: str, most: float) -> None:
    made = plan(text, 2**26, link=FAST)
    schedule = made.schedule(nbytes=2**26, link=FAST)
    assert schedule.seconds(2**26, FAST) <= most
    assert seconds(made, 2**26, FAST) == pytest.approx(schedule.seconds(2**26, FAST), rel=0.06)


@settings(max_examples=60, deadline=None)
@given(meshes(8), st.integers(1, 400))
def test_chunks_are_shared_out_by_share(mesh: Mesh, chunks: int) -> None:
    made = plan(mesh, algorithm="trees")
    count = share_out(made, chunks)
    assert count.sum() == chunks
    assert (np.abs(count - made.share * chunks) < 1 + 1e-6).all()


def test_hop_is_honoured() -> None:
    schedule = plan("4x4", algorithm="trees").schedule(40, hop=4)
    verify(schedule)
    early = Schedule(schedule.mesh, schedule.chunks, 5, schedule.slot, schedule.link, schedule.chunk, schedule.copy)
    with pytest.raises(Exception, match=r"sent before it is there|after .* has passed its sum on"):
        verify(early)


def test_two_phases_do_not_overlap() -> None:
    schedule = plan("8x8", algorithm="rowcol").schedule(256, hop=2)
    assert schedule.slot[schedule.copy].min() >= schedule.slot[~schedule.copy].max() + 2
    overlapped = plan("8x8", algorithm="trees").schedule(256)
    assert overlapped.slot[overlapped.copy].min() < overlapped.slot[~overlapped.copy].max()


@settings(max_examples=8, deadline=None)
@given(meshes(4), st.sampled_from([1, 3]))
def test_compiled_and_plain_clocks_agree(mesh: Mesh, hop: int) -> None:
    made = plan(mesh, algorithm="trees")
    streams = Streams(made, share_out(made, len(made) + 5))
    key = _due(streams, hop, 1)
    busy = np.where(np.arange(mesh.link_numbers) % 7 == 0, 2, 1)
    fast = streams.run(key, hop - 1, busy)
    compiled, _serve._compiled = _serve._compiled, _serve.plain
    try:
        plain = streams.run(key, hop - 1, busy)
    finally:
        _serve._compiled = compiled
    assert plain.slots == fast.slots
    assert np.array_equal(plain.when, fast.when)
    assert np.array_equal(plain.order, fast.order)


def test_one_chip_needs_no_slot() -> None:
    schedule = plan("1x1").schedule()
    verify(schedule)
    assert schedule.slots == 0
    assert schedule.algbw == float("inf")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunks": 0}, "chunks=0"),
        ({"chunks": 5.5}, "chunks=5.5: give a whole number"),
        ({"hop": 1.5}, "hop=1.5: give a whole number"),
        ({"hop": 0}, "hop=0"),
        ({"nbytes": 0}, "nbytes=0"),
        ({"nbytes": 1e6, "link": "string"}, "link 'string'"),
    ],
)
def test_bad_requests(options: dict[str, object], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan("4x4", algorithm="trees").schedule(**options)


def test_a_schedule_without_latency_does_not_pretend() -> None:
    schedule = plan("4x4", algorithm="trees").schedule(2048)
    with pytest.raises(PlanError, match=r"need hop=\d+ on this link"):
        schedule.seconds(1e4, "tpu-v3")
    with pytest.raises(PlanError, match="bandwidth must be positive"):
        LinkSpeed(0, 1e-6)


def test_chunks_make_latency_whole_slots() -> None:
    made = plan("16x32", algorithm="trees")
    for nbytes in (1e5, 1e6, 2**26, 1e9):
        chunks = chunks_for(made, nbytes, FAST)
        assert min(len(made), nbytes // SMALLEST_CHUNK) <= chunks <= 4096
        assert hop_slots(nbytes, chunks, FAST) >= 1
