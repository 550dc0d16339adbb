"""Sums over another data set, divided among workers that may die."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshmend as mm
from meshmend.job.evaluation import evaluate
from meshmend.job.state.values import to_bytes

DATA = np.arange(50, dtype=np.float32)


def right(chunk: Any) -> Any:
    return {"count": len(chunk), "sum": chunk.sum(), "both": np.array([1.0, len(chunk)])}


def test_alone_it_is_the_sum_over_all_samples() -> None:
    with mm.Job(np.zeros(32, np.float32), batch=16, lanes=4) as job:
        with pytest.raises(mm.JobError, match=r"before job\.share"):
            job.evaluate(DATA, right)
        job.share(np.zeros(1, np.float32))
        found = job.evaluate(DATA, right)
        with pytest.raises(mm.JobError, match="no samples"):
            job.evaluate(DATA[:0], right)
    assert found["count"] == 50 and found["sum"] == DATA.sum() and found["both"].tolist() == [13.0, 50.0]


def test_chunks_of_the_dead_are_computed_by_the_others() -> None:
    """Of three workers, one dies before its first chunks arrive; the other two divide them."""
    computed: list[int] = []
    rounds = iter([{0, 1, 2}, {0, 1}, {0, 1}])

    def of_others(rank: int, left: list[int], members: list[int]) -> bytes:
        mine = [number for turn, number in enumerate(left) if members[turn % len(members)] == rank]
        return to_bytes({number: right(DATA[number * 10 : number * 10 + 10]) for number in mine})

    left, members = list(range(5)), [0, 1, 2]

    def exchange(data: bytes) -> dict[int, bytes]:
        nonlocal left, members
        present = sorted(next(rounds))
        if not data:
            return dict.fromkeys(present, b"")
        found = {rank: data if rank == 0 else of_others(rank, left, members) for rank in present}
        left = [number for turn, number in enumerate(left) if members[turn % len(members)] not in present]
        members = present
        return found

    def function(chunk: Any) -> Any:
        computed.append(int(chunk[0]) // 10)
        return right(chunk)

    total = evaluate(DATA, 50, 10, 0, function, exchange)
    assert total["count"] == 50 and total["sum"] == DATA.sum()
    assert computed == [0, 3, 2]  # its own, and then one of the dead worker's
