"""Exact sums on devices are those of the host, bit for bit: wire, notes, grid and result, for any bits."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest

from meshmend.job.frameworks.jax.exact import ExactWire
from meshmend.job.reduction.exact import Exact
from meshmend.job.reduction.layout import Layout

SIZES = (1, 1024, 1500, 0, 3)
LANES = 5


def lane(rng: np.random.Generator, kind: str) -> npt.NDArray[np.float32]:
    """A lane's gradient: any bits, or numbers with jumps, subnormals, infinities and NaN among them."""
    size = sum(SIZES)
    if kind == "bits":
        return rng.integers(0, 1 << 32, size, np.uint32).view(np.float32)
    found = (rng.normal(size=size) * 2.0 ** rng.integers(-120, 100)).astype(np.float32)
    if kind == "mixed":
        found *= (2.0 ** rng.integers(-60, 20, size)).astype(np.float32)
        found[rng.integers(0, size, 40)] = rng.integers(1, 1 << 23, 40, np.uint32).view(np.float32)  # subnormal
        found[rng.integers(0, size, 40)] = -0.0
    if kind == "bad":
        found[rng.integers(0, size)] = rng.choice([np.nan, np.inf, -np.inf])
    return found


def leaves(flat: npt.NDArray[Any]) -> list[Any]:
    return [jnp.asarray(one) for one in np.split(flat, np.cumsum(SIZES)[:-1])]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_jax_adds_as_the_host_does() -> None:
    rng = np.random.default_rng(0)
    layout = Layout([(str(number), np.zeros(size, np.float32)) for number, size in enumerate(SIZES)])
    exact, mine = Exact(SIZES, LANES), Exact(SIZES, LANES)
    wire = ExactWire(layout, mine)
    good = 0
    for turn in range(60):
        kind = ("smooth", "smooth", "mixed", "bits", "bad")[rng.integers(0, 5)]
        gradients = [lane(rng, kind) for _ in range(1 if turn % 3 else LANES)]
        if kind == "smooth" and turn % 2:  # the grid stands, as in most steps
            gradients = [(one * np.float32(1.5)).astype(np.float32) for one in gradients]
        for _ in range(3):
            expected, sums = exact.wire(), wire.empty()
            for gradient in gradients:
                exact.add(expected, gradient)
                sums = wire.add_in_place(*sums, leaves(gradient), mine.factors[0])
            flat = np.asarray(wire.flat(*sums))
            assert flat.tobytes() == expected.tobytes()
            unit = mine.factors[1]
            outcome, against = exact.finish(expected), mine.judge(np.asarray(sums[1]))
            assert exact.state().tobytes() == mine.state().tobytes()
            if against is None:
                found = wire.values(wire.opened(jnp.asarray(flat[: mine.size])), unit)
                assert outcome.sums is not None
                assert np.concatenate([np.asarray(one) for one in found]).tobytes() == outcome.sums.tobytes()
                good += 1
                break
            assert (outcome.bad, outcome.redo) == (against.bad, against.redo)
            if against.bad:
                break
    assert good > 15
