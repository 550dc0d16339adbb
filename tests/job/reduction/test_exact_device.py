"""Exact sums on devices are those of the host, bit for bit: wire, notes, grid and result, for any bits."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
import torch

from meshmend.job.frameworks.jax import host
from meshmend.job.frameworks.jax.exact import ExactWire
from meshmend.job.frameworks.torch import exact as of_torch
from meshmend.job.reduction.exact import FRESH, Exact, ExactResult
from meshmend.job.reduction.layout import Layout
from tests.job.reduction.notes import any_notes

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
        self._wire = ExactWire(layout, exact, host.Destination(None))

    def add(self, gradient: npt.NDArray[np.float32], *, first: bool) -> None:
        add, before = (self._wire.first, ()) if first else (self._wire.add_in_place, self._sums)
        self._sums = add(*before, [jnp.asarray(one) for one in leaves(gradient)], self._wire.grid.factors[0])

    def flat(self) -> npt.NDArray[np.int32]:
        return np.asarray(self._wire.flat(*self._sums))

    def notes(self) -> npt.NDArray[np.int32]:
        return np.asarray(self._sums[1])

    def values(self, flat: npt.NDArray[np.int32], unit: Any) -> list[Any]:
        return list(self._wire.values(self._wire.opened(jnp.asarray(flat))[0], unit))

    def judge(self, notes: npt.NDArray[np.int32]) -> ExactResult | None:
        return self._wire.grid.judge_begun(jnp.asarray(notes))()

    def factors(self) -> tuple[Any, Any]:
        return self._wire.grid.factors


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
        self._wire.open(torch.from_numpy(flat[: sum(SIZES)]))
        return self._wire.values(unit)

    def judge(self, notes: npt.NDArray[np.int32]) -> ExactResult | None:
        found: ExactResult | None = self._wire.exact.judge(torch.from_numpy(notes))
        return found

    def factors(self) -> tuple[Any, Any]:
        return self._wire.exact.factors


@pytest.mark.parametrize("library", [OfJax, OfTorch])
@pytest.mark.parametrize("lanes", [1, 8, 300])
def test_devices_judge_as_the_host_does(library: Any, lanes: int) -> None:
    rng = np.random.default_rng(lanes)
    sizes = (2000, 0, 1, 5000, 1024)
    layout = Layout([(str(number), np.zeros(size, np.float32)) for number, size in enumerate(sizes)])
    exact, mine = Exact(sizes, lanes), Exact(sizes, lanes)
    wire = library(layout, mine)
    seen = {"good": 0, "redo": 0, "bad": 0}
    for turn in range(400):
        notes = any_notes(rng, exact)
        expected, found = exact.judge(notes), wire.judge(notes)
        assert (expected is None) == (found is None)
        assert not expected or expected.bad == found.bad
        assert exact.state().tobytes() == mine.state().tobytes()
        for here, there in zip(exact.factors, wire.factors(), strict=True):
            assert here.tobytes() == np.asarray(there).tobytes()
        seen["good" if expected is None else "bad" if expected.bad else "redo"] += 1
        if turn % 50 == 49:  # another grid, as a newcomer or a checkpoint brings it
            other = np.full(len(exact.level), FRESH, np.int16) if turn % 100 == 99 else exact.state() - np.int16(7)
            exact.restore(np.maximum(other, FRESH))
            mine.restore(np.maximum(other, FRESH))
    assert min(seen.values()) >= 20, seen


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
            unit = wire.factors()[1]
            outcome, against = exact.finish(expected), mine.judge(wire.notes())
            assert exact.state().tobytes() == mine.state().tobytes()
            if against is None:
                found = wire.values(flat, unit)
                assert outcome.sums is not None
                assert np.concatenate([np.asarray(one) for one in found]).tobytes() == outcome.sums.tobytes()
                seen["good"] += 1
                break
            assert (outcome.bad, outcome.redo) == (against.bad, against.redo)
            seen["bad" if against.bad else "redo"] += 1
            if against.bad:
                break
    assert min(seen.values()) >= 5, seen
