"""Random numbers of a lane, and the check that finds a function that is not deterministic."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import meshmend as mm
from meshmend.base.signatures import takes
from meshmend.job.frameworks.draws import Draws

X = np.ones((32, 3), np.float32)


def noisy(lane: Any, draws: Draws) -> Any:
    return (lane + draws.rng.random(lane.shape, np.float32)).sum(0)


def with_key(lane: Any, draws: Draws) -> Any:
    import jax

    return jax.numpy.sum(lane + jax.random.uniform(draws.key, lane.shape), 0)


def with_generator(lane: Any, draws: Draws) -> Any:
    import torch

    return (lane + torch.rand(lane.shape, generator=draws.generator).numpy()).sum(0)


def trained(function: Callable[..., Any], lanes: int = 4, **options: Any) -> list[bytes]:
    found = []
    with mm.Job(X, batch=16, lanes=lanes, reduction="exact", **options) as job:
        state = job.share(np.zeros(3, np.float32))
        for _ in job.steps(3):
            state = state + np.asarray(job.sum(function))
            job.commit(state)
            found.append(state.tobytes())
    return found


@pytest.mark.parametrize("function", [noisy, with_key, with_generator])
def test_random_numbers_depend_on_seed_step_and_lane_alone(function: Callable[..., Any], capsys: Any) -> None:
    first = trained(function)
    assert trained(function) == first and len(set(first)) == 3
    assert trained(function, seed=1)[0] != first[0]
    assert "draws" not in capsys.readouterr().out
    seen: list[tuple[int, int]] = []
    trained(lambda lane, draws: seen.append((draws.step, draws.lane)) or lane.sum(0), check=False)
    assert set(seen) == {(step, lane) for step in range(3) for lane in range(4)}


def test_two_draws_in_one_lane_are_two_numbers() -> None:
    one, again = Draws(0, 1, 2), Draws(0, 1, 2)
    drawn = [one.rng.random(), one.rng.random()]
    assert drawn[0] != drawn[1] and drawn == [again.rng.random(), again.rng.random()]


RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(("check", "said"), [(True, 1), (False, 0)])
def test_a_function_that_is_not_deterministic_is_told_once(check: bool, said: int, capsys: Any) -> None:
    trained(lambda lane: {"a": lane.sum(), "noise": lane.sum() * RANDOM.random(dtype=np.float32)}["noise"], check=check)
    assert capsys.readouterr().out.count("check=False") == said


def test_the_leaf_is_named(capsys: Any) -> None:
    with mm.Job(X, batch=16, lanes=4) as job:
        job.share(np.zeros(3, np.float32))
        job.sum(lambda lane: {"good": lane.sum(), "odd": np.float32(RANDOM.random())})
    assert "'odd'" in capsys.readouterr().out


def test_which_functions_take_a_second_argument() -> None:
    def gradient(state: Any, lane: Any, draws: Any = None) -> Any:
        return state, lane, draws

    assert takes(noisy, 2) and takes(lambda lane, draws: (lane, draws), 2) and takes(gradient, 2)
    assert not takes(partial(gradient, 1), 2) and not takes(lambda lane, state=1: (lane, state), 2)
    assert not takes(min, 2)


def test_warm_may_take_draws_too() -> None:
    seen: list[Any] = []
    with mm.Job(X, batch=16, lanes=4, seed=5) as job:
        job.share(np.zeros(3, np.float32), warm=lambda *given: seen.append(given))
        job.share(np.zeros(3, np.float32), warm=lambda state, lane, draws: seen.append((state, lane, draws)))
    assert [len(one) for one in seen] == [2, 3] and seen[1][2] == Draws(5, 0, 0)
