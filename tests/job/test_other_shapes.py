"""A function that gives other shapes or types than before is told in one sentence, in a sum and in a sharded update."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshmend as mm

OTHERS = {
    "shape": lambda grad: np.zeros((len(grad), 2), np.float32),
    "type": lambda grad: grad.astype(np.float64),
    "fewer": lambda _: (),
}


def of_lane(kind: str) -> Any:
    """Gradients, which from the second call on are others."""
    calls = []

    def function(lane: Any) -> Any:
        calls.append(1)
        grad = np.ones(4, np.float32) * lane.sum()
        return grad if len(calls) == 1 else OTHERS[kind](grad)

    return function


@pytest.mark.parametrize("reduction", ["float", "exact"])
@pytest.mark.parametrize("kind", OTHERS)
def test_in_a_sum(kind: str, reduction: str) -> None:
    with mm.Job(np.ones(16, np.float32), batch=8, lanes=4, reduction=reduction) as job:
        job.share(np.zeros(4, np.float32))
        with pytest.raises(mm.JobError) as caught:
            for _ in job.steps(2):
                job.sum(of_lane(kind))
    assert "\n" not in str(caught.value) and "every lane" in str(caught.value), caught.value


@pytest.mark.parametrize("kind", OTHERS)
def test_in_a_sharded_update(kind: str) -> None:
    sgd = mm.optimizer(lambda _: {}, lambda weights, grads, state: (weights - np.float32(0.1) * grads, state))
    with mm.Job(np.ones(16, np.float32), batch=8, lanes=4, reduction="exact") as job:
        job.share(np.zeros(4, np.float32), optimizer=sgd)
        with pytest.raises(mm.JobError) as caught:
            for _ in job.steps(2):
                job.update(of_lane(kind))
    assert "\n" not in str(caught.value), caught.value
