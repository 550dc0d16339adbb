"""A state as bytes and back, and its seal."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from meshmend.errors import JobError
from meshmend.train.state import flipped, from_pieces, pieces, seal_of

TREE = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "scalar": np.array(3, np.int64),
    "half": [np.ones(5, ml_dtypes.bfloat16), np.zeros((0, 4), np.float16)],
    "turned": np.arange(6, dtype=np.int32).reshape(2, 3).T,
}


def through(tree: Any, like: Any, **about: Any) -> tuple[Any, dict[str, Any]]:
    return from_pieces(np.frombuffer(b"".join(bytes(piece) for piece in pieces(tree, **about)), np.uint8), like)


def test_every_type_comes_back_to_the_bit() -> None:
    like = {"w": np.zeros((2, 3), np.float32), "scalar": np.array(0), "turned": np.zeros((3, 2), np.int32)}
    like["half"] = [np.zeros(5, ml_dtypes.bfloat16), np.ones((0, 4), np.float16)]  # type: ignore[assignment]
    found, about = through(TREE, like, step=7, grid=[1, 2])
    assert about == {"step": 7, "grid": [1, 2]}
    assert seal_of(found) == seal_of(TREE)
    np.testing.assert_array_equal(found["turned"], TREE["turned"])
    assert found["half"][0].dtype == ml_dtypes.bfloat16
    assert found["scalar"].shape == ()
    found["w"][0] = 5  # it is the newcomer's own


@pytest.mark.parametrize(
    "like",
    [np.zeros(3, np.float32), np.zeros(2, np.float64), {"a": np.zeros(2, np.float32)}],
    ids=["shape", "type", "leaf"],
)
def test_another_shape_is_refused_with_its_name(like: Any) -> None:
    with pytest.raises(JobError, match="all workers must run the same script"):
        through(np.zeros(2, np.float32), like)


def test_every_flipped_bit_changes_the_seal() -> None:
    array = np.random.default_rng(0).normal(size=13).astype(np.float32)
    before = seal_of(array)
    data = array.view(np.uint8)
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        assert seal_of(array) != before
        data[bit // 8] ^= 1 << bit % 8
    assert seal_of(flipped(array)) != before
