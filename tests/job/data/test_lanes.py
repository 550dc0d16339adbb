"""Every sample of every epoch is in exactly one lane of one step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshmend.errors import JobError
from meshmend.job.data.lanes import Lanes


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 5), st.integers(0, 9))
def test_each_sample_once_an_epoch(size: int, lanes: int, lane_size: int, seed: int) -> None:
    batch = lanes * lane_size
    if size < batch:
        return
    data = Lanes(size, batch, lanes, seed)
    steps = 3 * size // batch
    row = np.concatenate([data.ids(step, lane) for step in range(steps) for lane in range(lanes)])
    assert len(row) == steps * batch
    for epoch in range(len(row) // size):
        assert sorted(row[epoch * size : (epoch + 1) * size]) == list(range(size))


def test_any_order_of_asking_gives_the_same_ids() -> None:
    wanted = [(step, lane) for step in range(9) for lane in range(4)]
    forwards = {key: Lanes(30, 12, 4, 3).ids(*key).tolist() for key in wanted}
    data = Lanes(30, 12, 4, 3)
    assert {key: data.ids(*key).tolist() for key in reversed(wanted)} == forwards
    assert Lanes(30, 12, 4, 4).ids(0, 0).tolist() != forwards[0, 0]


@pytest.mark.parametrize(
    ("size", "batch", "lanes", "message"),
    [
        (100, 10, 4, "cannot be divided into 4 equal lanes: lanes must divide it, such as lanes=5"),
        (9, 10, 5, "9 samples, fewer than one batch of 10"),
        (9, 0, 5, "at least 1"),
        (9, 5, -1, "at least 1"),
    ],
)
def test_bad_numbers_are_one_sentence(size: int, batch: int, lanes: int, message: str) -> None:
    with pytest.raises(JobError, match=message):
        Lanes(size, batch, lanes)


@given(st.integers(1, 60), st.integers(1, 6), st.integers(1, 5))
def test_in_order_each_lane_reads_through_a_stretch_of_its_own(size: int, lanes: int, lane_size: int) -> None:
    batch = lanes * lane_size
    if size < batch:
        return
    data = Lanes(size, batch, lanes, in_order=True)
    assert sorted(data.epoch(0)) == list(range(size))
    for lane in range(lanes):
        row = np.concatenate([data.ids(step, lane) for step in range(size // batch)])
        assert row.tolist() == list(range(row[0], row[0] + len(row)))


@given(st.integers(0, 9), st.data())
def test_with_lengths_a_step_holds_the_same_samples_sorted_into_lanes(seed: int, data: st.DataObject) -> None:
    lengths = np.array(data.draw(st.lists(st.integers(1, 9), min_size=12, max_size=30)))
    plain, by_length = Lanes(len(lengths), 12, 3, seed), Lanes(len(lengths), 12, 3, seed, lengths=lengths)
    for step in range(4):
        row = np.concatenate([by_length.ids(step, lane) for lane in range(3)])
        assert sorted(row) == sorted(np.concatenate([plain.ids(step, lane) for lane in range(3)]))
        assert lengths[row].tolist() == sorted(lengths[row])
