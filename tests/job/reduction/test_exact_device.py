"""Exact sums on devices are those of the host, bit for bit: wire, notes, grid and result, for any bits."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
import torch

from meshmend.job.frameworks.jax.exact import ExactWire
from meshmend.job.frameworks.torch import exact as of_torch
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
    return np.split(flat, np.cumsum(SIZES)[:-1])


class OfJax:
    """A wire of JAX."""

    def __init__(self, layout: Layout, exact: Exact) -> None:
        self._wire = ExactWire(layout, exact)

    def add(self, gradient: npt.NDArray[np.float32], *, first: bool) -> None:
        sums = self._wire.empty() if first else self._sums
        add = self._wire.add_in_place
        self._sums = add(*sums, [jnp.asarray(one) for one in leaves(gradient)], self._wire.exact.factors[0])

    def flat(self) -> npt.NDArray[np.int32]:
        return np.asarray(self._wire.flat(*self._sums))

    def notes(self) -> npt.NDArray[np.int32]:
        return np.asarray(self._sums[1])

    def values(self, flat: npt.NDArray[np.int32], unit: Any) -> list[Any]:
        return list(self._wire.values(self._wire.opened(jnp.asarray(flat)), unit))


class OfTorch:
    """A wire of PyTorch."""

    def __init__(self, layout: Layout, exact: Exact) -> None:
        self._wire = of_torch.ExactWire(layout, exact, torch.device("cpu"))

    def add(self, gradient: npt.NDArray[np.float32], *, first: bool) -> None:
        self._wire.add([torch.from_numpy(one) for one in leaves(gradient)], first=first)

    def flat(self) -> npt.NDArray[np.int32]:
        return np.asarray(self._wire.flat())

    def notes(self) -> npt.NDArray[np.int32]:
        return np.asarray(self._wire.notes())

    def values(self, flat: npt.NDArray[np.int32], unit: Any) -> list[Any]:
        self._wire.open(torch.from_numpy(flat))
        return self._wire.values(unit)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("library", [OfJax, OfTorch])
def test_devices_add_as_the_host_does(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_torch, "ROWS", 2)
    rng = np.random.default_rng(0)
    layout = Layout([(str(number), np.zeros(size, np.float32)) for number, size in enumerate(SIZES)])
    exact, mine = Exact(SIZES, LANES), Exact(SIZES, LANES)
    wire = library(layout, mine)
    seen = {"good": 0, "redo": 0, "bad": 0}
    for turn in range(60):
        kind = ("smooth", "smooth", "mixed", "bits", "bad")[rng.integers(0, 5)]
        gradients = [lane(rng, kind) for _ in range(1 if turn % 3 else LANES)]
        for _ in range(3):
            expected = exact.wire()
            for number, gradient in enumerate(gradients):
                exact.add(expected, gradient)
                wire.add(gradient, first=number == 0)
            flat = wire.flat()
            assert flat.tobytes() == expected.tobytes()
            unit = mine.factors[1]
            outcome, against = exact.finish(expected), mine.judge(wire.notes())
            assert exact.state().tobytes() == mine.state().tobytes()
            if against is None:
                found = wire.values(flat[: mine.size], unit)
                assert outcome.sums is not None
                assert np.concatenate([np.asarray(one) for one in found]).tobytes() == outcome.sums.tobytes()
                seen["good"] += 1
                break
            assert (outcome.bad, outcome.redo) == (against.bad, against.redo)
            seen["bad" if against.bad else "redo"] += 1
            if against.bad:
                break
    assert min(seen.values()) >= 5, seen
