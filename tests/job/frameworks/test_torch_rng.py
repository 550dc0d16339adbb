"""The generators that a lane's random numbers come from."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from meshmend.job.frameworks.torch import rng

KEY = (7, 12, 3)


def drawn() -> list[float]:
    return [float(torch.rand(())), float(np.random.rand()), random.random()]


@pytest.mark.parametrize("alone", [True, False], ids=["no accelerator", "an accelerator that is not used yet"])
def test_a_key_seeds_as_pytorch_itself_does(alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rng, "_cpu_alone", lambda: alone)
    before = rng.states()
    rng.seed(KEY)
    found = drawn()
    number = np.random.SeedSequence(KEY).generate_state(2, np.uint64)[0]
    torch.manual_seed(int(number >> 1))
    assert found[0] == float(torch.rand(()))
    rng.seed(KEY)
    assert drawn() == found
    rng.restore(before)


def test_what_a_lane_draws_leaves_the_users_own_numbers_alone() -> None:
    kept = rng.states()
    expected = drawn()
    rng.restore(kept)
    inside = rng.states()
    rng.seed(KEY)
    assert drawn() != expected
    rng.restore(inside)
    assert drawn() == expected
