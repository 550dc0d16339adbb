"""Batch norm in groups that are lanes: JAX's statistics and PyTorch's are the same, and the lanes' mean."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
import torch

import meshmend as mm

X = np.random.default_rng(0).normal(1.5, 2.0, size=(48, 5)).astype(np.float32)
STEPS = 6


def jax_statistics(lanes: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """The loop of docs/lanes.md, and after it what the lanes of each step would have made of the statistics."""

    @jax.jit
    def of_lane(stats: Any, lane: Any) -> Any:
        mean, var = lane.mean(0), lane.var(0)
        return {"mean": 0.9 * stats["mean"] + 0.1 * mean, "var": 0.9 * stats["var"] + 0.1 * var}

    stats = {"mean": jnp.zeros(5), "var": jnp.ones(5)}
    expected = np.zeros(5)
    with mm.Job(X, batch=24, lanes=lanes, reduction="exact") as job:
        stats = job.share(stats)
        for _ in job.steps(STEPS):
            seen: list[Any] = []

            def lane_of(lane: Any, seen: list[Any] = seen, stats: Any = stats) -> Any:
                seen.append(np.asarray(lane).mean(0, dtype=np.float64))
                return of_lane(stats, lane)

            summed = job.sum(lane_of)
            stats = jax.tree.map(lambda one: one / lanes, summed)
            expected = 0.9 * expected + 0.1 * np.mean(seen[-lanes:], axis=0)
            job.commit(stats)
    return np.asarray(stats["mean"]), np.asarray(stats["var"]), expected


@pytest.mark.parametrize("lanes", [2, 4])
def test_running_statistics_move_by_the_mean_over_lanes_in_jax_and_pytorch(lanes: int) -> None:
    mean, var, expected = jax_statistics(lanes)
    assert np.allclose(mean, expected, atol=1e-5)
    norm = torch.nn.BatchNorm1d(5, momentum=0.1)
    with mm.Job(torch.from_numpy(X), batch=24, lanes=lanes, reduction="exact") as job:
        job.share(norm)

        def backward(lane: Any) -> Any:
            loss = norm(lane).square().sum()
            loss.backward()
            return loss

        for _ in job.steps(STEPS):
            job.sum(backward)
            job.commit()
    size = 24 // lanes
    assert torch.allclose(norm.running_mean, torch.from_numpy(mean), atol=1e-5)  # type: ignore[arg-type]
    begun = 0.9**STEPS  # the part that is left of the first value; PyTorch divides the rest by one sample less
    assert np.allclose(norm.running_var.numpy() - begun, (var - begun) * size / (size - 1), atol=1e-4)  # type: ignore[union-attr]


def test_other_groups_give_other_statistics() -> None:
    """The variance within a group depends on the groups, so they must not depend on who computes them."""
    assert not np.allclose(jax_statistics(2)[1], jax_statistics(8)[1], atol=1e-3)
