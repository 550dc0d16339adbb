"""LARS, LAMB and clipping on slices: the norms are those of whole tensors, however the state is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import meshmend as mm
from meshmend.errors import JobError
from meshmend.job.frameworks import elementwise
from meshmend.job.slices.holder import Holder
from meshmend.job.slices.large_batch import PUBLISHED, WarmupDecay
from meshmend.job.slices.optimizers import Sliced, checked
from tests.job.slices.test_holder import init, update

TENSORS = [("a", (60, 70)), ("b", (5,)), ("c", (3, 40, 20)), ("d", (1,))]
SIZES = [int(np.prod(shape)) for _, shape in TENSORS]
Floats = npt.NDArray[np.float32]


def numbers(seed: int) -> Floats:
    dice = np.random.default_rng(seed)
    return (dice.standard_normal(sum(SIZES)) * 10.0 ** dice.integers(-3, 2, sum(SIZES))).astype(np.float32)


def trained(optimizer: Sliced, slices: int, steps: int = 4, members: int = 1) -> Floats:
    """The weights after some updates, with each slice on one of several holders."""
    made = optimizer.of_slices(sum(SIZES), tensors=False)
    holders = [Holder(SIZES, numbers(0), made, 1, slices, TENSORS) for _ in range(members)]
    count = holders[0].slicing.count
    for place, holder in enumerate(holders):
        holder.hold([number for number in range(count) if number % members == place])
    for round in range(steps):
        for holder in holders:
            wire = holder.exact.wire()
            holder.exact.add(wire, numbers(round + 1))
            holder.scatter(round, [wire], holder.copies)
        for stage in range(len(made.wants)):
            every = np.max([holder.measure(round, stage) for holder in holders], axis=0)
            for holder in holders:
                holder.stages.measured(stage, every)
        for holder in holders:
            holder.update(round, holder.copies)
        for number in range(count):
            for holder in holders:
                holder.of(number)[:] = holders[number % members].of(number)
    return holders[0].weights


OPTIMIZERS = {
    "lars": mm.lars(0.5, decay=1e-3),
    "lamb": mm.lamb(0.01),
    "clipped": mm.clipped(mm.optimizer(init, update), 2.0),
    "clipped lamb": mm.clipped(mm.lamb(WarmupDecay(0.1, 2, 9)), 1.0),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_slices_and_members_change_no_bit(name: str) -> None:
    expected = trained(OPTIMIZERS[name], 1)
    assert np.isfinite(expected).all() and (expected != numbers(0)).any()
    for slices, members in [(3, 1), (7, 2), (64, 3)]:
        assert trained(OPTIMIZERS[name], slices, members=members).tobytes() == expected.tobytes()


def test_lamb_and_lars_are_those_of_optax() -> None:
    """Up to rounding, on tensors of two dimensions and more: on others optax has a ratio too."""
    import optax

    theirs = {"lamb": optax.lamb(0.01, weight_decay=0.01), "lars": optax.lars(0.5, weight_decay=1e-3)}
    mine = {"lamb": mm.lamb(0.01, decay=0.01), "lars": mm.lars(0.5, decay=1e-3)}
    start, gradients = elementwise._numbers()
    for name, transformation in theirs.items():
        weights = elementwise._shaped(start)
        state = transformation.init(weights)
        for one in gradients:
            updates, state = transformation.update(elementwise._shaped(one), state, weights)
            weights = optax.apply_updates(weights, updates)
        flat, wants = elementwise._trained_with_norms(
            mine[name].init, mine[name].update, start, gradients, [0, 37, len(start)]
        )
        assert wants == (2,)
        for leaf, value in elementwise._shaped(flat).items():
            if value.ndim > 1:
                np.testing.assert_allclose(value, weights[leaf], rtol=1e-4, atol=1e-5)


def test_published_schedules_warm_up_and_decay() -> None:
    for one in PUBLISHED:
        assert one.source.startswith("https://") and one.optimizer in ("lars", "lamb")
        rate = one.rate(1_281_167)
        done = np.array([rate(number) for number in range(rate.updates + 1)])
        assert done.max() == pytest.approx(one.peak) and done.argmax() in (rate.warmup - 1, rate.warmup)
        assert (np.diff(done[rate.warmup :]) <= 0).all() and done[-1] == 0


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: mm.WarmupDecay(1.0, 5, 5), "warmup=5"),
        (lambda: mm.lars(0.1, momentum=-1), "momentum=-1"),
        (lambda: mm.lamb(0.1, divide=0), "divide=0"),
        (lambda: mm.clipped(mm.lamb(0.1), 0), "norm=0"),
        (lambda: mm.clipped("adam", 1.0), "mm.optimizer"),
        (lambda: checked(mm.optimizer(init, update), "rows"), "slices='rows'"),
    ],
)
def test_bad_arguments_are_refused(call: Any, said: str) -> None:
    with pytest.raises(JobError, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)


def uneven(weights: Floats, gradients: Floats, state: Any) -> Any:
    if len(weights) > 50:
        yield gradients
    return weights, state


def local(weights: Floats, gradients: Floats, state: Any) -> Any:
    yield gradients
    return weights - gradients / np.float32(1 + np.linalg.norm(gradients)), state


def test_generators_are_tried_out_too() -> None:
    with pytest.raises(JobError, match="requested norms"):
        checked(mm.optimizer(init, uneven))
    with pytest.raises(JobError, match="cut into slices"):
        checked(mm.optimizer(init, local))
