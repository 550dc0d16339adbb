"""A state as bytes and back, and its digest."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshmend.errors import JobError
from meshmend.job.frameworks.arrays import TreeState
from meshmend.job.state.tree import DIGEST_BITS
from tests.job.states import digest_of, through

TREE = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "scalar": np.array(3, np.int64),
    "half": [np.ones(5, ml_dtypes.bfloat16), np.zeros((0, 4), np.float16)],
    "turned": np.arange(6, dtype=np.int32).reshape(2, 3).T,
}


def test_every_type_comes_back_to_the_bit() -> None:
    like = {"w": np.zeros((2, 3), np.float32), "scalar": np.array(0), "turned": np.zeros((3, 2), np.int32)}
    like["half"] = [np.zeros(5, ml_dtypes.bfloat16), np.ones((0, 4), np.float16)]  # type: ignore[assignment]
    found, about = through(TREE, like, step=7, grid=[1, 2])
    assert about == {"step": 7, "grid": [1, 2]}
    assert digest_of(found) == digest_of(TREE)
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
    with pytest.raises(JobError, match="same script on all workers"):
        through(np.zeros(2, np.float32), like)


def test_every_flipped_bit_changes_the_seal() -> None:
    array = np.random.default_rng(0).normal(size=13).astype(np.float32)
    before = digest_of(array)
    data = array.view(np.uint8)
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        assert digest_of(array) != before
        data[bit // 8] ^= 1 << bit % 8
    state = TreeState(array)
    state.flip_bit()
    assert state.digest() != before and digest_of(array) == before


KINDS = st.sampled_from([np.float32, np.float64, np.float16, np.int64, np.uint8, ml_dtypes.bfloat16])


@st.composite
def arrays(draw: st.DrawFn) -> npt.NDArray[Any]:
    """Any bits, of any of these types, 0 to 40 numbers."""
    kind = np.dtype(draw(KINDS))
    size = draw(st.integers(0, 40)) * kind.itemsize
    return np.frombuffer(draw(st.binary(min_size=size, max_size=size)), kind).copy()


@given(arrays(), st.data())
def test_a_swap_a_flip_and_a_turn_change_the_seal(array: npt.NDArray[Any], data: st.DataObject) -> None:
    before, raw = digest_of(array), array.tobytes()
    assert 0 <= before < 2**DIGEST_BITS

    def changed(other: npt.NDArray[Any]) -> bool:
        return (digest_of(other) != before) == (other.tobytes() != raw)

    assert changed(array.copy())
    assert changed(np.ascontiguousarray(array[::-1]))
    assert digest_of(array[::-1]) == digest_of(np.ascontiguousarray(array[::-1]))
    assert digest_of(np.repeat(array, 2)[::2]) == before
    if len(array):
        one, two = (data.draw(st.integers(0, len(array) - 1)) for _ in range(2))
        other = array.copy()
        other[[one, two]] = other[[two, one]]
        assert changed(other)
        for bits in (1, 2):
            bent = array.copy()
            for _ in range(bits):
                bit = data.draw(st.integers(0, 8 * len(raw) - 1))
                bent.view(np.uint8)[bit // 8] ^= 1 << bit % 8
            assert changed(bent)
        assert digest_of(array[0].reshape(())) == digest_of(array[:1])


@given(st.lists(arrays(), max_size=4), st.data())
def test_the_seal_knows_where_leaves_end_and_in_which_order_they_come(
    leaves: list[npt.NDArray[Any]], data: st.DataObject
) -> None:
    raw = [leaf.tobytes() for leaf in leaves]
    turned = leaves[::-1]
    assert (digest_of(turned) == digest_of(leaves)) == (raw == raw[::-1])
    assert digest_of([*leaves, np.zeros(0, np.float32)]) != digest_of(leaves)
    if leaves and len(leaves[-1]):
        cut = data.draw(st.integers(0, len(leaves[-1])))
        assert digest_of([*leaves[:-1], leaves[-1][:cut], leaves[-1][cut:]]) != digest_of(leaves)


def test_what_a_sum_of_words_did_not_see() -> None:
    words = np.arange(8, 16, dtype=np.uint64)
    other = words.copy()
    other[0] += np.uint64(7)
    other[1] -= np.uint64(7)
    assert len({digest_of(words), digest_of(words[::-1]), digest_of(other)}) == 3
