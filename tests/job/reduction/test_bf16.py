"""bf16 on the wire: rounded as everybody rounds, added in float32, and close to the true sum."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshmend as mm
from meshmend.errors import JobError, NotFinite
from meshmend.job.reduction import bf16
from meshmend.job.reduction.bf16 import SMALL, Bf16
from meshmend.job.reduction.footer import Footer
from meshmend.job.reduction.layout import Layout

BITS = 2.0**-8
"""What one rounding may change, relative to the result."""
LEAST = 2.0**-133
"""The least bf16: below it lies only 0."""


def rounded(values: np.ndarray) -> np.ndarray:
    out = np.empty(len(values), np.uint16)
    bf16.put(values, out)
    return out


def widened(halves: np.ndarray) -> np.ndarray:
    out = np.empty(len(halves), np.float32)
    bf16.take(halves, out)
    return out


def floats(bits: np.ndarray) -> np.ndarray:
    return bits.astype(np.uint32).view(np.float32)


def alike(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """The same bits, but for NaN, of which ours is one and the same."""
    nan = np.isnan(theirs.astype(np.float32))
    return bool((ours == np.where(nan, np.uint16(0x7FC0), theirs.view(np.uint16))).all())


def test_every_bf16_comes_back() -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    theirs = every.view(ml_dtypes.bfloat16)
    assert widened(every).tobytes() == theirs.astype(np.float32).tobytes()
    assert alike(rounded(widened(every)), theirs)


def test_rounding_is_that_of_ml_dtypes() -> None:
    random = np.random.default_rng(0)
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    for lower in (0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF):  # ties, and what is beside them, at every number
        values = floats(upper | np.uint32(lower))
        with np.errstate(invalid="ignore"):
            assert alike(rounded(values), values.astype(ml_dtypes.bfloat16))
    values = floats(random.integers(0, 1 << 32, 1 << 20, dtype=np.uint32))
    with np.errstate(invalid="ignore"):
        assert alike(rounded(values), values.astype(ml_dtypes.bfloat16))
    assert widened(rounded(np.array([np.inf, -np.inf, 3.4e38, -3.4e38], np.float32))).tolist() == [
        np.inf, -np.inf, np.inf, -np.inf,
    ]  # fmt: skip


def test_kernels_do_what_the_plain_functions_do() -> None:
    random = np.random.default_rng(0)
    values = floats(random.integers(0, 1 << 32, 2000, dtype=np.uint32))
    with np.errstate(over="ignore", invalid="ignore"):  # numpy minds that a NaN wraps
        halves = np.array([bf16._bf16.plain(value) for value in values], np.uint16)
    wide = np.array([bf16._float32.plain(half) for half in halves], np.float32)
    assert (halves == rounded(values)).all() and wide.tobytes() == widened(halves).tobytes()
    kernels = (bf16._round, 1, 0), (bf16._widen, 0, 1), (bf16._add_two, 0, 0, 0), (bf16._add_first, 0, 0, 1)
    for kernel, *types in (*kernels, (bf16._add_one, 0, 1), (bf16._add_last, 1, 0, 0)):
        kinds = [(halves, values)[one] for one in types]
        given = [random.permutation(kind)[:200] for kind in kinds]
        plain = [one.copy() for one in given]
        with np.errstate(all="ignore"):
            kernel.plain(*plain)
        kernel(*given)
        assert np.array_equal(given[-1], plain[-1], equal_nan=True)


@pytest.mark.parametrize("size", [0, 1, bf16.BLOCK, 2 * bf16.BLOCK + 3])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_parts_are_added_in_float32_and_rounded_once(size: int, count: int) -> None:
    random = np.random.default_rng(size + count)
    parts = [rounded(random.normal(size=size).astype(np.float32)) for _ in range(count)]
    total, out = np.zeros(size, np.float32), np.empty(size, np.uint16)
    for part in parts:
        total += widened(part)
    bf16.add(parts, out)
    assert (out == rounded(total)).all()


def test_a_not_finite_sum_has_the_same_bits_in_any_order() -> None:
    odd = floats(np.array([0x7F800000, 0xFF800000, 0x7F800001, 0xFFC12345, 0x3F800000, 0x7FFFFFFF], np.uint32))
    one, other = map(rounded, (np.repeat(odd, 6), np.tile(odd, 6)))
    there, back = np.empty((2, 36), np.uint16)
    with np.errstate(invalid="ignore"):
        bf16.add([one, other], there)
        bf16.add([other, one], back)
        true = widened(one) + widened(other)
    assert (there == back).all() and np.array_equal(widened(there), true, equal_nan=True)


trees = st.lists(
    st.tuples(st.sampled_from([0, 1, 5, SMALL - 1, SMALL, SMALL + 1, 200]), st.sampled_from("fdi")),
    min_size=1,
    max_size=5,
)


@settings(max_examples=60, deadline=None)
@given(trees, st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_sums_of_trees(shape: list[tuple[int, str]], workers: int, seed: int) -> None:
    """Lanes dealt to workers at random: a bound holds, but the last bits may depend on who computed which lane."""
    random = np.random.default_rng(seed)
    lanes, footer = 7, Footer(7, workers)

    def leaf(size: int, kind: str) -> np.ndarray:
        values = np.ldexp(random.normal(size=size), random.integers(-8, 9, size))
        return (values * 100 if kind == "i" else values).astype(kind)

    rows = [{str(i): leaf(*one) for i, one in enumerate(shape)} for _ in range(lanes)]
    by = random.integers(0, workers, lanes)
    messages = []
    for worker in range(workers):
        sums, mine = Bf16(Layout([*rows[0].items()]), lanes), np.flatnonzero(by == worker)
        message = np.zeros(sums.size + footer.size, np.float32)
        for place, lane in enumerate(mine):
            sums.add(message[: sums.size], sums.layout.arrays([*rows[lane].items()]), first=place == 0)
            if random.random() < 0.5:  # an answer, after which more lanes are asked for
                sums.put(message[: sums.size])
        if len(mine):
            sums.put(message[: sums.size])
        footer.write(message, mine.tolist(), worker, 2**48 - 1 - worker, leaving=False)
        messages.append(message)
    total = np.empty_like(messages[0])
    wire = sums.wire_format(footer.size)
    cut = int(random.integers(0, wire.size + 1))  # slices may end anywhere
    for here in (slice(0, cut), slice(cut, wire.size)):
        wire.combine([message[here] for message in messages], total[here], here.start)
    assert footer.read(total).by == by.tolist()
    assert footer.read(total).digests == {worker: 2**48 + 65536 - 1 - worker for worker in range(workers)}
    found = sums.finish(total[: sums.size], 0)
    assert found is not None
    for name, value in zip(rows[0], found, strict=True):
        every = np.stack([row[name].astype(np.float64) for row in rows])
        assert value.dtype == rows[0][name].dtype and value.shape == every.shape[1:]
        unit = BITS if value.size >= SMALL and value.dtype.kind == "f" else 0.0
        # Each part is rounded, and then their sum; float32 adds a little.
        bound = (2 * unit + unit**2 + 2.0**-20) * np.abs(every).sum(0) + LEAST
        assert (np.abs(value - every.sum(0)) <= bound).all()


def test_half_the_bytes() -> None:
    sums = Bf16(Layout([("w", np.zeros((100, 101), np.float32)), ("loss", np.array(0, np.float32))]), 8)
    assert (sums.head, sums.size) == (5050, 5051)
    assert Bf16(Layout([("w", np.zeros(SMALL + 1, np.float32))]), 8).head == SMALL // 2 + 1


def job(**options: Any) -> mm.Job:
    return mm.Job(np.arange(64, dtype=np.float32), batch=64, lanes=8, **options)


def test_a_world_of_one_rounds_once() -> None:
    random = np.random.default_rng(0)
    scale = random.normal(size=100).astype(np.float32)
    with job(wire="bf16") as bf, job() as full:
        found, plain = [], []
        for made, out in ((bf, found), (full, plain)):
            made.share(np.zeros(1, np.float32))
            for _ in made.steps(2):
                out.append(made.sum(lambda lane: (np.outer(lane, scale).sum(0), lane.sum(), np.arange(70))))
                made.commit(np.zeros(1, np.float32))
    for (grad, total, whole), (true, wanted, number) in zip(found, plain, strict=True):
        assert grad.tobytes() == widened(rounded(true)).tobytes() and grad.tobytes() != true.tobytes()
        assert total == wanted == 2016 and (whole == number).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_finite_is_seen_and_named(bad: float) -> None:
    made = job(wire="bf16", nonfinite="error")
    made.share(np.zeros(1, np.float32))
    with pytest.raises(NotFinite, match=r"step 0: \W+b\W+ holds NaN or Inf"):
        made.sum(lambda _: {"a": np.ones(100, np.float32), "b": np.full(100, bad, np.float32)})


def test_mistakes_are_one_sentence() -> None:
    with pytest.raises(JobError, match="wire='fp8'; choose from float32, bf16"):
        job(wire="fp8")
    with pytest.raises(JobError, match="wire='bf16' cannot be combined with reduction='exact'"):
        job(wire="bf16", reduction="exact")
