"""Exact sums: the same bits in any order and grouping, close to the true sum, and never silently wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshmend.job.protocol.rounds import MOST_LANES
from meshmend.job.reduction import exact as module
from meshmend.job.reduction.exact import COARSE, FRESH, HIGH, LOW, Exact, ExactResult, ExactSum
from meshmend.job.reduction.layout import Layout
from tests.job.reduction.notes import any_notes

seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(autouse=True, scope="module", params=[0, module.SMALL], ids=["compiled", "numpy"])
def both_ways(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test runs twice: small gradients are as exact without compiled loops."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SMALL", request.param)
        yield


@st.composite
def shapes(draw: st.DrawFn) -> tuple[list[int], int, int]:
    """Sizes of leaves, lanes, block: with empty leaves, leaves of one value and last blocks that are not full."""
    leaves = draw(st.lists(st.integers(0, 70), min_size=1, max_size=5).filter(sum))
    return leaves, draw(st.integers(1, 40)), draw(st.sampled_from([1, 7, 16, 1024]))


def gradients(seed: int, leaves: list[int], lanes: int, low: int = -30, high: int = 10) -> np.ndarray:
    """A row for each lane: every leaf has a height of its own, 2**low to 2**high, and some values are far below it."""
    random = np.random.default_rng(seed)
    size = sum(leaves)
    height = np.repeat(random.integers(low, high, len(leaves)), leaves)
    down = random.integers(0, 12, size) * (random.random(size) < 0.3)
    return np.ldexp(random.standard_normal((lanes, size)), height - down).astype(np.float32)


def one_round(grid: Exact, rows: np.ndarray, workers: int = 1, seed: int = 0) -> ExactResult:
    """Lanes dealt to workers at random, added in random order; then the workers' wires added in random order."""
    random = np.random.default_rng(seed)
    worker = random.integers(0, workers, len(rows))
    wires = [grid.wire() for _ in range(workers)]
    for lane in random.permutation(len(rows)):
        grid.add(wires[worker[lane]], rows[lane])
    total = grid.wire()
    for i in random.permutation(workers):
        total += wires[i]
    return grid.finish(total)


def step(grid: Exact, rows: np.ndarray, workers: int = 1, seed: int = 0) -> np.ndarray:
    """The sums of a step, which takes two rounds at most and is within the documented bound."""
    unit = units(grid)
    outcome = one_round(grid, rows, workers, seed)
    if outcome.redo:
        assert outcome.sums is None
        unit = units(grid)
        outcome = one_round(grid, rows, workers, seed + 1)
    assert outcome.sums is not None and not outcome.redo and not outcome.bad
    check(outcome.sums, rows, unit)
    return outcome.sums


def true_sum(rows: np.ndarray) -> np.ndarray:
    return np.array([math.fsum(column) for column in rows.T.tolist()])


def units(grid: Exact) -> np.ndarray:
    """Each value's unit; 2**LOW where nothing is known, so that only subnormals may be lost there."""
    return np.repeat(np.ldexp(1.0, np.maximum(grid.exponents, LOW)), np.diff(grid._bounds))


def check(sums: np.ndarray, rows: np.ndarray, unit: np.ndarray) -> None:
    """The documented bound: half a unit a lane, and one rounding to float32."""
    true = true_sum(rows)
    error = len(rows) / 2 * unit
    assert (np.abs(sums - true) <= error + 2.0**-24 * (np.abs(true) + error)).all()


@settings(max_examples=60)
@given(shapes(), seeds, st.integers(1, 8))
def test_the_bits_do_not_depend_on_order_or_workers(shape: tuple[list[int], int, int], seed: int, workers: int) -> None:
    leaves, lanes, block = shape
    alone, many = Exact(leaves, lanes, block), Exact(leaves, lanes, block)
    for t in range(4):
        rows = gradients(seed + t, leaves, lanes)
        assert step(alone, rows).tobytes() == step(many, rows, workers, seed + 9 + t).tobytes()
        assert alone.state().tobytes() == many.state().tobytes()


@settings(max_examples=60)
@given(shapes(), seeds)
def test_a_new_unit_is_a_small_part_of_the_leafs_largest_block(shape: tuple[list[int], int, int], seed: int) -> None:
    leaves, lanes, block = shape
    grid = Exact(leaves, lanes, block)
    rows = gradients(seed, leaves, lanes)
    assert one_round(grid, rows).redo == tuple(i for i, size in enumerate(leaves) if size)
    pieces = np.cumsum(leaves)[:-1]
    for part, unit in zip(np.split(rows, pieces, 1), np.split(units(grid), pieces), strict=True):
        starts = range(0, len(unit), block)
        largest = max((np.abs(part[:, i : i + block]).max(1).sum(dtype=float) for i in starts), default=1)
        assert (unit <= 2.0**-27 * (1 + 2.0**-COARSE) * largest).all()
        assert (unit >= 2.0**-28 * largest).all()


@settings(max_examples=100)
@given(shapes(), seeds, st.integers(-149, 110), st.integers(-149, 110))
@example(([5, 1030], 32, 1024), 0, -100, 100)
@example(([1], 1, 1), 0, -149, 110)
def test_any_jump_takes_one_more_round(shape: tuple[list[int], int, int], seed: int, before: int, after: int) -> None:
    leaves, lanes, block = shape
    grid = Exact(leaves, lanes, block)
    step(grid, gradients(seed, leaves, lanes, before - 1, before))
    step(grid, gradients(seed + 1, leaves, lanes, after - 1, after))


@settings(max_examples=200)
@given(st.integers(1, 64), st.floats(1, 40), seeds, st.booleans())
def test_growth_near_the_limit_is_right_or_redone(lanes: int, growth: float, seed: int, same: bool) -> None:
    grid = Exact([40], lanes)
    rows = np.abs(gradients(seed, [40], lanes, 0, 1)) if not same else np.ones((lanes, 40), np.float32)
    step(grid, rows)
    rows = (rows * growth).astype(np.float32)
    twin = Exact([40], lanes)
    twin.restore(grid.state())
    assert one_round(twin, rows).sums is not None or growth > 7
    step(grid, rows, 3)


@settings(max_examples=100)
@given(shapes(), seeds, st.data())
def test_one_value_that_jumps_is_seen(shape: tuple[list[int], int, int], seed: int, data: st.DataObject) -> None:
    leaves, lanes, block = shape
    grid = Exact(leaves, lanes, block)
    rows = gradients(seed, leaves, lanes)
    step(grid, rows)
    lane, where = data.draw(st.integers(0, lanes - 1)), data.draw(st.integers(0, sum(leaves) - 1))
    rows[lane, where] = data.draw(st.sampled_from([1e6, -1e12, 1e30, -1e38]))
    leaf = int(np.searchsorted(np.cumsum(leaves), where, side="right"))
    assert one_round(grid, rows, 4, seed).redo == (leaf,)
    step(grid, rows, 4, seed)


@settings(max_examples=100)
@given(shapes(), seeds, st.booleans(), st.data())
def test_nan_and_inf_are_seen_and_named(
    shape: tuple[list[int], int, int], seed: int, fresh: bool, data: st.DataObject
) -> None:
    leaves, lanes, block = shape
    grid = Exact(leaves, lanes, block)
    rows = gradients(seed, leaves, lanes)
    if not fresh:
        step(grid, rows)
    state = grid.state()
    ill = rows.copy()
    lane, where = data.draw(st.integers(0, lanes - 1)), data.draw(st.integers(0, sum(leaves) - 1))
    ill[lane, where] = data.draw(st.sampled_from([np.nan, -np.nan, np.inf, -np.inf]))
    ill[:, sum(leaves) - 1] *= data.draw(st.sampled_from([1.0, 1e20]))  # an outgrown grid does not hide it
    outcome = one_round(grid, ill, 4, seed)
    leaf = int(np.searchsorted(np.cumsum(leaves), where, side="right"))
    assert outcome.bad == (leaf,) and outcome.sums is None and not outcome.redo
    assert (grid.state() == state).all()
    step(grid, rows)  # a skipped step leaves nothing behind


def test_a_sum_beyond_float32_is_bad_not_infinite() -> None:
    grid = Exact([3, 3], 4)
    rows = np.full((4, 6), 1e38, np.float32)
    rows[:, :3] = 1e37
    assert one_round(grid, rows).bad == (1,)
    rows[:, 3:] = 3e37
    assert np.isfinite(step(grid, rows)).all() and grid.exponents.max() == HIGH


def test_zeros_are_a_good_round_and_teach_nothing() -> None:
    grid = Exact([3, 2], 4)
    assert not one_round(grid, np.zeros((4, 5), np.float32)).redo and (grid.state() == FRESH).all()
    rows = np.zeros((4, 5), np.float32)
    rows[:, :3] = 0.25
    assert step(grid, rows).tolist() == [1, 1, 1, 0, 0]
    known = grid.state()
    assert known[0] > FRESH and known[1] == FRESH
    for _ in range(100):
        assert not step(grid, np.zeros((4, 5), np.float32)).any()
    assert (grid.state() == known).all()


def test_subnormals_count_as_zero() -> None:
    grid = Exact([4], 8)
    tiny = np.full((8, 4), 2.0**-127, np.float32)
    assert not step(grid, tiny).any() and (grid.state() == FRESH).all()
    tiny[:, 0] = 2.0**-126
    sums = step(grid, tiny)
    assert grid.exponents[0] == LOW and (np.abs(sums[sums != 0]) >= 2.0**-126).all()
    assert sums.tolist()[1:] == [0, 0, 0]


def test_the_grid_follows_its_leaf_down() -> None:
    grid = Exact([2000], 8)
    rows = gradients(1, [2000], 8, 0, 1)
    step(grid, rows)
    high = grid.exponents.max()
    for _ in range(20):
        step(grid, np.ldexp(rows, -20))
    assert grid.exponents.max() == high - 20


def test_small_blocks_win_digits_and_jumps_to_the_leafs_height_are_rare() -> None:
    """Rows of an embedding: most are quiet, each jumps now and then, some do so for the first time late."""
    blocks, steps = 400, 600
    random = np.random.default_rng(0)
    grid = Exact([blocks * 4], 4, block=4)
    often = 1 / np.arange(3, blocks + 3)
    redone = 0
    for _ in range(steps):
        height = np.where(random.random(blocks) < often, 0, -13)
        height[0] = 0
        rows = np.ldexp(random.uniform(0.5, 2, (4, blocks * 4)), np.repeat(height, 4)).astype(np.float32)
        outcome = one_round(grid, rows)
        if outcome.redo:
            redone += 1
            outcome = one_round(grid, rows)
        assert outcome.sums is not None
    assert redone <= 1 + steps // 96
    assert (grid.exponents < grid.exponents[0]).any()


@settings(max_examples=40)
@given(shapes(), seeds)
def test_state_goes_on_where_another_left(shape: tuple[list[int], int, int], seed: int) -> None:
    leaves, lanes, block = shape
    old, new = Exact(leaves, lanes, block), Exact(leaves, lanes, block)
    for t in range(2):
        step(old, gradients(seed + t, leaves, lanes))
    new.restore(np.frombuffer(old.state().tobytes(), np.int16))
    for t in range(2, 5):
        rows = gradients(seed + t, leaves, lanes)
        assert step(old, rows).tobytes() == step(new, rows, 3).tobytes()
    assert (old.state() == new.state()).all()


def test_a_grid_that_no_total_has_moved_is_the_same_before_the_first_lane_and_after_it() -> None:
    """A newcomer of the first step was told of another grid than the digest of the others was of."""
    leaves = [("a", np.arange(3000, dtype=np.float32))]
    sums = ExactSum(Layout(leaves, 4), 4)
    assert sums.state().tolist() == []
    part = np.zeros(sums.size, sums.dtype)
    sums.add(part, [leaves[0][1]], first=True)
    assert sums.state().tolist() == []
    assert sums.finish(part, 0) is None, "the first grid is too fine"
    moved = sums.state()
    assert len(moved)
    sums.restore(sums.state()[:0])
    assert sums.state().tolist() == [] and sums.finish(part, 0) is None and (sums.state() == moved).all()


def test_a_wire_that_comes_late_gives_the_same() -> None:
    early, late = Exact([50], 4), Exact([50], 4)
    for t in range(3):
        wire = early.wire()
        for row in gradients(t // 2, [50], 4):
            early.add(wire, row)
        kept = wire.copy()
        first, second = early.finish(wire), late.finish(kept)
        assert (first.redo, first.bad) == (second.redo, second.bad) and (early.state() == late.state()).all()
        if first.sums is not None and second.sums is not None:
            assert first.sums.tobytes() == second.sums.tobytes()


def test_leaf_by_leaf_is_the_same_as_flat() -> None:
    leaves = [5, 0, 1030, 1]
    grid = Exact(leaves, 4)
    rows = gradients(3, leaves, 4)
    step(grid, rows)
    flat, parts = grid.wire(), grid.wire()
    for row in rows:
        grid.add(flat, row)
        for leaf, part in enumerate(np.split(row, np.cumsum(leaves)[:-1])):
            grid.add(parts, part.reshape(1, -1), leaf)
    assert (flat == parts).all()


@pytest.mark.parametrize("lanes", [1, 5, MOST_LANES])
def test_kernels_do_what_the_plain_functions_do(monkeypatch: pytest.MonkeyPatch, lanes: int) -> None:
    leaves = [40, 3]
    rows = gradients(5, leaves, 5)[: min(lanes, 5)]
    rows[0, 0], rows[-1, 1] = 1e-40, 2.5 * 2.0**-20
    compiled, plain = Exact(leaves, lanes, 16), Exact(leaves, lanes, 16)
    compiled.small = plain.small = False
    for t in range(3):
        wire = compiled.wire()
        for row in rows:
            compiled.add(wire, row)
        want = compiled.finish(wire).sums
        with monkeypatch.context() as patch:
            patch.setattr(module, "_quantise", module._quantise.plain)
            patch.setattr(module, "_float32", module._float32.plain)
            again = plain.wire()
            for row in rows:
                plain.add(again, row)
            got = plain.finish(again).sums
        assert (wire == again).all() and (compiled.state() == plain.state()).all()
        assert (want is None) == (got is None) == (t == 0)
        if want is not None and got is not None:
            assert want.tobytes() == got.tobytes()


@settings(max_examples=150)
@given(shapes(), seeds, st.integers(-149, 110), st.lists(st.sampled_from([0, -0.0, 1e-40, math.inf, -math.nan, 3e38])))
def test_numpy_and_compiled_loops_write_the_same_wire(
    shape: tuple[list[int], int, int], seed: int, height: int, odd: list[float]
) -> None:
    leaves, lanes, block = shape
    compiled, small = Exact(leaves, lanes, block), Exact(leaves, lanes, block)
    compiled.small, small.small = False, True
    random = np.random.default_rng(seed)
    for exponent in (0, height, height):
        rows = gradients(seed, leaves, lanes, exponent - 20, exponent + 1)
        for value in odd if exponent else []:
            rows[random.integers(lanes), random.integers(sum(leaves))] = value
        wires = [grid.wire() for grid in (compiled, small)]
        for row in rows:
            compiled.add(wires[0], row)
            small.add(wires[1], row)
        assert wires[0].tobytes() == wires[1].tobytes()
        want, got = compiled.finish(wires[0]), small.finish(wires[1])
        assert (want.redo, want.bad) == (got.redo, got.bad) and (compiled.state() == small.state()).all()
        if want.sums is not None and got.sums is not None:
            assert want.sums.tobytes() == got.sums.tobytes()


def judged_by_definition(grid: Exact, notes: np.ndarray) -> tuple[np.ndarray, tuple[int, ...], tuple[int, ...]]:
    """The new levels, and the leaves to do again and the bad ones: the rules of the module, block by block."""
    level, leaf = grid.state().astype(np.int32), grid.leaf_of
    spread = np.zeros(len(notes))
    for digit, worth in zip(notes.T, grid.worth, strict=False):
        spread += digit * worth
    bad = (notes[:, -1] != 0) | (spread >= np.ldexp(module.ROOM, HIGH))
    if bad.any():
        return level, (), tuple(np.unique(leaf[bad]).tolist())
    used = spread > 0
    need = np.clip(np.frexp(spread)[1] - (31 - module.HEADROOM), LOW, HIGH) * module.FALL
    need = np.where(used, need, FRESH).astype(np.int32)
    peak = np.full(len(grid.leaves), FRESH, np.int32)
    np.maximum.at(peak, leaf, need)
    top = peak[leaf]
    small = used & ((level == FRESH) | (spread >= np.ldexp(module.ROOM, -(-level // module.FALL))))
    if small.any():
        jumped = np.isin(leaf, leaf[small])
        return np.where(jumped, np.maximum(level, top), level), tuple(np.unique(leaf[small]).tolist()), ()
    lower = np.where(level > top, np.maximum(level - module.FALL, top), level - used)
    return np.where(top == FRESH, level, np.maximum(lower, need)), (), ()


@settings(max_examples=100)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=5).filter(sum), st.sampled_from([1, 8, 300, 4096]), seeds)
def test_a_round_is_judged_by_the_rules(leaves: list[int], lanes: int, seed: int) -> None:
    grid, random = Exact(leaves, lanes, 2), np.random.default_rng(seed)
    for _ in range(6):
        notes = any_notes(random, grid)
        level, redo, bad = judged_by_definition(grid, notes)
        outcome = grid.judge(notes)
        assert ((outcome.redo, outcome.bad) if outcome else ((), ())) == (redo, bad)
        assert (grid.state() == level).all()
        known = level != FRESH
        exponents = np.where(known, -(-level // module.FALL), 0)
        assert (grid.factors[0] == np.ldexp(np.float32(1), -exponents) * known).all()
        assert (grid.factors[1] == np.ldexp(np.float32(1), exponents) * known).all()


def test_as_many_lanes_as_there_may_be() -> None:
    grid = Exact([6], MOST_LANES)
    rows = np.full((MOST_LANES, 6), 3.0, np.float32)
    rows[:, 1] *= np.where(np.arange(MOST_LANES) % 2, 1, -1)
    assert step(grid, rows, 8).tolist() == [3.0 * MOST_LANES, 0, *[3.0 * MOST_LANES] * 4]
    assert one_round(grid, rows * np.float32(64)).redo == (0,)
    ill = np.full((MOST_LANES, 6), np.nan, np.float32)
    assert one_round(grid, ill, 8).bad == (0,)


def test_the_wire_is_about_as_long_as_float32() -> None:
    assert Exact([10**6], 32).wire_size < 1.013e6
    assert Exact([10**6], MOST_LANES).wire_size < 1.018e6
    assert Exact([], 4).wire_size == 0 and step(Exact([], 4), np.zeros((4, 0), np.float32)).size == 0


def test_buffers_of_any_owner() -> None:
    grid = Exact([6], 2)
    values = np.arange(12, dtype=np.float32)
    values.flags.writeable = False
    out = np.zeros(6, np.float32)
    for _ in range(2):
        wire = grid.wire()
        grid.add(wire, values[::2])
        outcome = grid.finish(wire, out)
    assert outcome.sums is out and out.tolist() == [0, 2, 4, 6, 8, 10]


def test_bad_input_gets_one_sentence() -> None:
    grid = Exact([6], 2)
    for words, call in {
        "0 lanes": lambda: Exact([6], 0),
        "use fewer lanes": lambda: Exact([6], MOST_LANES + 1),
        "must not be negative": lambda: Exact([6, -1], 2),
        "6 float32 are expected": lambda: grid.add(grid.wire(), np.zeros(5, np.float32)),
        "6 float64 values": lambda: grid.add(grid.wire(), np.zeros(6)),  # type: ignore[arg-type]
        "int32 is expected": lambda: grid.add(grid.wire()[:-1], np.zeros(6, np.float32)),
        "was given: ": lambda: grid.finish(grid.wire()[:-1]),
        "`out` is": lambda: grid.finish(grid.wire(), np.zeros(5, np.float32)),
        "for 1 blocks": lambda: grid.restore(np.zeros(2, np.int16)),
        "to 30000": lambda: grid.restore(np.full(1, 30000, np.int16)),
    }.items():
        with pytest.raises(ValueError, match=words):
            call()
