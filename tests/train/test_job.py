"""A job as a world of one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshmend as mm

X = np.arange(24, dtype=np.float32)


def test_warm_is_called_once_before_the_first_step_and_what_it_returns_is_dropped() -> None:
    seen: list[Any] = []
    with mm.Job(X, batch=8, lanes=4) as job:
        state = job.share(np.float32(2), warm=lambda state, lane: seen.append((state, len(lane), job.step)))
        assert seen == [(2, 2, 0)]
        assert state == 2
        for _ in job.steps(2):
            job.sum(lambda lane: lane.sum())
            job.commit(state)
    assert len(seen) == 1


def test_each_sample_of_an_epoch_is_summed_once() -> None:
    with mm.Job(X, batch=8, lanes=4) as job:
        state = job.share(np.float32(0))
        for _ in job.steps(3):
            state = state + job.sum(lambda lane: lane.sum())
            job.commit(state, total=state)
    assert state == X.sum()


@pytest.mark.parametrize("reduction", ["float", "exact"])
def test_a_sum_that_is_not_finite_is_refused_or_skipped(reduction: str) -> None:
    bad = np.where(X == 5, np.inf, X).astype(np.float32)
    with (
        pytest.raises(mm.JobError, match="holds NaN or Inf in some lane"),
        mm.Job(bad, batch=24, lanes=4, reduction=reduction, nonfinite="error") as job,
    ):
        job.share(np.float32(0))
        job.sum(lambda lane: lane.sum())
    with mm.Job(bad, batch=8, lanes=4, reduction=reduction, nonfinite="skip") as job:
        state = job.share(np.float32(0))
        for _ in job.steps(3):
            state = state + job.sum(lambda lane: lane.sum())
            job.commit(state)
        assert np.isfinite(state)
        assert job.step >= 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lanes": 3}, "cannot be divided into 3 equal lanes"),
        ({"batch": 25, "lanes": 5}, "fewer than one batch of 25"),
        ({"reduction": "odd"}, "choose from float, exact"),
        ({"reduction": "exact", "nonfinite": "pass"}, "choose 'error' or 'skip'"),
        ({"wire": "fp8"}, "choose from float32, bf16"),
        ({"wire": "bf16", "reduction": "exact"}, "exact sums need all their bits"),
    ],
)
def test_mistakes_are_one_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(mm.JobError, match=message):
        mm.Job(X, **{"batch": 8, "lanes": 4, **options})


def test_another_tree_is_refused_with_its_leaf() -> None:
    with mm.Job(X, batch=8, lanes=4) as job, pytest.raises(mm.JobError, match="return the same"):
        job.share(np.float32(0))
        sizes = iter([1, 2])
        job.sum(lambda _: {"w": np.zeros(next(sizes), np.float32)})


def test_words_out_of_order_are_refused() -> None:
    with mm.Job(X, batch=8, lanes=4) as job:
        with pytest.raises(mm.JobError, match=r"job\.sum was called before job\.share"):
            job.sum(lambda lane: lane.sum())
        with pytest.raises(mm.JobError, match=r"job\.commit was called before job\.share"):
            job.commit(np.float32(0))
        state = job.share(np.float32(0))
        for step in job.steps(2):
            with pytest.raises(mm.JobError, match=f"job.commit was called in step {step} without a sum"):
                job.commit(state)
            job.sum(lambda lane: lane.sum())
            with pytest.raises(mm.JobError, match=f"job.sum was called twice in step {step}"):
                job.sum(lambda lane: lane.sum())
            job.commit(state)
        assert job.step == 2
