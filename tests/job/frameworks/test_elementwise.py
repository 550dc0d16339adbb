"""Optimizers are tried out, not looked up: which of them can work on slices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshmend.job.frameworks.elementwise import of_functions, of_transformation, try_out

RATE = np.float32(0.01)


def adam(weights: Any, gradients: Any, state: Any) -> tuple[Any, Any]:
    first, second, count = state
    count = count + 1
    first = np.float32(0.9) * first + np.float32(0.1) * gradients
    second = np.float32(0.999) * second + np.float32(0.001) * gradients**2
    scaled = first / np.float32(1 - 0.9**count), second / np.float32(1 - 0.999**count)
    return weights - RATE * scaled[0] / (np.sqrt(scaled[1]) + np.float32(1e-8)), (first, second, count)


def moments(weights: Any) -> Any:
    return np.zeros_like(weights), np.zeros_like(weights), 0


def by_norm(weights: Any, gradients: Any, state: Any) -> tuple[Any, Any]:
    return weights - RATE * gradients / np.linalg.norm(gradients), state


def by_rows(weights: Any, gradients: Any, state: Any) -> tuple[Any, Any]:
    """Something that does another thing to matrices."""
    return weights - RATE * (
        gradients - gradients.mean(axis=-1, keepdims=True) if gradients.ndim > 1 else gradients
    ), state


def nothing(weights: Any) -> Any:
    del weights


def test_what_works_on_each_number_alone_passes() -> None:
    trial = try_out(of_functions(moments, adam))
    assert trial.elementwise and trial.same_bits and trial.difference == 0


def test_what_draws_on_its_neighbours_does_not() -> None:
    for update in (by_norm, by_rows):
        trial = try_out(of_functions(nothing, update))
        assert not trial.elementwise and trial.difference > 1e-3


def test_what_gives_nan_for_a_slice_only_does_not() -> None:
    def update(weights: Any, gradients: Any, state: Any) -> tuple[Any, Any]:
        return (weights * np.float32("nan") if weights.size == 16 else weights - gradients), state

    assert not try_out(of_functions(nothing, update)).elementwise


def optax_transformations() -> dict[str, tuple[Any, bool]]:
    import jax
    import optax
    from optax import contrib

    def matrices(params: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf.ndim > 1, params)

    return {
        "adam": (optax.adam(1e-3), True),
        "clip_by_global_norm": (optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)), False),
        "sgd": (optax.sgd(0.1, momentum=0.9, nesterov=True), True),
        "adamw": (optax.adamw(optax.cosine_decay_schedule(0.1, 10)), True),
        "lion": (optax.lion(1e-3), True),
        "clip": (optax.chain(optax.clip(1.0), optax.rmsprop(1e-3)), True),
        "lars": (optax.lars(0.1), False),
        "lamb": (optax.lamb(1e-3), False),
        "muon": (contrib.muon(1e-3), False),
        "masked": (optax.adamw(1e-3, weight_decay=0.1, mask=matrices), False),
        "noise": (optax.chain(optax.add_noise(1.0, 1.0, jax.random.key(0)), optax.sgd(0.1)), False),
    }


NAMES = (
    "adam", "clip_by_global_norm", "sgd", "adamw", "lion", "clip", "lars", "lamb", "muon", "masked", "noise",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.jobs
@pytest.mark.parametrize("name", NAMES)
def test_optax_transformations_are_judged_by_what_they_do(name: str) -> None:
    transformation, expected = optax_transformations()[name]
    assert try_out(of_transformation(transformation)).elementwise is expected
