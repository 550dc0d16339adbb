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
