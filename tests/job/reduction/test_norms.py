"""Sums of squares of whole tensors: the same bits however the state is sliced, and whoever holds the slices."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshmend.job.reduction.norms import Blocks, clipping, trust_ratio
from meshmend.job.sharding import Holdings, cut, placed

LEAVES = st.lists(st.integers(0, 5000), max_size=6)


def drawn(size: int, seed: int = 0) -> npt.NDArray[np.float32]:
    """Numbers of very different sizes, whose sums depend on the order."""
    dice = np.random.default_rng(seed)
    return (dice.standard_normal(size) * 10.0 ** dice.integers(-6, 6, size)).astype(np.float32)


def sharded(leaves: list[int], values: npt.NDArray[np.float32], slices: int, workers: int) -> npt.NDArray[np.float64]:
    """The squares of all blocks, as members have them after each slice's owner has given its own out."""
    blocks, slicing = Blocks(leaves), cut(leaves, slices)
    holdings = Holdings(placed(slicing.count, range(workers), 1))
    found = np.full(blocks.count, np.nan)
    for rank in range(workers):
        for which in holdings.held_by(rank):
            given = blocks.squares(values[slicing.numbers(which)], slicing.blocks[which])
            known = found[slicing.in_blocks(which)]
            assert np.isnan(known).all() or known.tobytes() == given.tobytes()  # owner and buddy agree
            found[slicing.in_blocks(which)] = given
    return found


@settings(max_examples=40)
@given(LEAVES, st.integers(1, 20), st.integers(1, 5), st.integers(0, 9))
def test_any_slicing_and_any_number_of_workers_give_the_same_bits(
    leaves: list[int], slices: int, workers: int, seed: int
) -> None:
    values, blocks = drawn(sum(leaves), seed), Blocks(leaves)
    whole = blocks.squares(values)
    parts = sharded(leaves, values, slices, workers)
    assert parts.tobytes() == whole.tobytes()
    assert blocks.by_leaf(parts).tobytes() == blocks.by_leaf(whole).tobytes()
    assert blocks.in_all(parts) == blocks.in_all(whole)


@settings(max_examples=30)
@given(LEAVES, st.integers(0, 9))
def test_sums_are_those_of_the_numbers(leaves: list[int], seed: int) -> None:
    values, blocks = drawn(sum(leaves), seed), Blocks(leaves)
    squares = blocks.squares(values)
    ends = np.cumsum([0, *leaves])
    for leaf, total in enumerate(blocks.by_leaf(squares)):
        exact = math.fsum(float(value) ** 2 for value in values[ends[leaf] : ends[leaf + 1]])
        assert total == pytest.approx(exact, rel=1e-13)
    assert blocks.in_all(squares) == pytest.approx(math.fsum(float(value) ** 2 for value in values), rel=1e-13)


def test_the_order_is_the_one_that_is_written_down() -> None:
    """By halves within a block, one after another over blocks: slowly, in Python's own numbers."""
    leaves = [2500, 7, 1024]
    values, blocks = drawn(sum(leaves)), Blocks(leaves)
    expected, begin = [], 0
    for size in leaves:
        for start in range(begin, begin + size, 1024):
            row = [float(value) ** 2 for value in values[start : min(start + 1024, begin + size)]]
            row += [0.0] * (1024 - len(row))
            while len(row) > 1:
                half = len(row) // 2
                row = [one + other for one, other in zip(row[:half], row[half:], strict=True)]
            expected.append(row[0])
        begin += size
    assert blocks.squares(values).tolist() == expected
    total = 0.0
    for one in expected:
        total += one
    assert blocks.in_all(blocks.squares(values)) == total


def test_numpy_s_own_sum_depends_on_the_slicing() -> None:
    """Which is why there is an order."""
    values = drawn(100_000).astype(np.float64) ** 2
    assert len({values.sum(), values[:33_000].sum() + values[33_000:].sum(), np.add.accumulate(values)[-1]}) > 1


@pytest.mark.parametrize(("norm", "most", "factor"), [(2.0, 1.0, 0.5), (2.0, 2.0, 1.0), (0.0, 1.0, 1.0)])
def test_clipping(norm: float, most: float, factor: float) -> None:
    found = clipping(np.float32(norm), most)
    assert found == factor and found.dtype == np.float32


@pytest.mark.parametrize(("weights", "step", "ratio"), [(4.0, 2.0, 2.0), (0.0, 1.0, 1.0), (1.0, 0.0, 1.0)])
def test_trust_ratio(weights: float, step: float, ratio: float) -> None:
    found = trust_ratio(np.array([weights], np.float32), np.array([step], np.float32))
    assert found.tolist() == [ratio] and found.dtype == np.float32


def test_parts_of_blocks_and_sums_of_other_states_are_refused() -> None:
    blocks = Blocks([3000])
    with pytest.raises(ValueError):
        blocks.squares(np.ones(1000, np.float32))
    with pytest.raises(ValueError):
        blocks.in_all(np.ones(4))
    with pytest.raises(ValueError):
        blocks.by_leaf(np.ones(2))
    with pytest.raises(ValueError):
        Blocks([3000], block=1000)
