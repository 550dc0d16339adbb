"""Sums and rows over another data set, divided among workers that may die."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

import meshmend as mm
from meshmend.job.evaluation import Chunks, Evaluation
from meshmend.job.state.values import to_bytes
from tests.processes import DEADLINE

DATA = np.arange(50, dtype=np.float32)


def right(chunk: Any) -> Any:
    return {"count": len(chunk), "sum": chunk.sum(), "both": np.array([1.0, len(chunk)])}


def scores(chunk: Any) -> Any:
    return np.sqrt(chunk), (chunk % 2).astype(np.int32)


class Death(Exception):
    pass


class Meeting:
    """Exchanges of workers that are threads. All get the same bytes, and those of the dead are missing for all."""

    def __init__(self, workers: int) -> None:
        self._alive = set(range(workers))
        self._brought: list[dict[int, bytes]] = []
        self._agreed: list[dict[int, bytes]] = []
        self._change = threading.Condition()

    def exchange(self, rank: int) -> Callable[[bytes], dict[int, bytes]]:
        turn = iter(range(10**6))

        def agreed(number: int) -> bool:
            if len(self._agreed) == number and self._brought[number].keys() >= self._alive:
                self._agreed.append({one: data for one, data in self._brought[number].items() if one in self._alive})
                self._change.notify_all()
            return len(self._agreed) > number

        def brings(data: bytes) -> dict[int, bytes]:
            with self._change:
                number = next(turn)
                if number == len(self._brought):
                    self._brought.append({})
                self._brought[number][rank] = data
                assert self._change.wait_for(lambda: agreed(number), DEADLINE)
                return self._agreed[number]

        return brings

    def die(self, rank: int) -> None:
        with self._change:
            self._alive.discard(rank)
            self._change.notify_all()


def evaluated(
    chunks: Chunks, workers: int, function: Callable[..., Any] = right, deaths: dict[int, int] | None = None
) -> dict[int, Evaluation]:
    """What each survivor has; `deaths` says after how many chunks a rank dies."""
    meeting, found = Meeting(workers), dict[int, Evaluation]()
    weighted = function not in (right, scores)

    def live(rank: int) -> None:
        done, left = Evaluation(chunks), (deaths or {}).get(rank, 10**6)

        def compute(number: int) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Death
            return chunks.computed(number, function, weighted=weighted)

        try:
            done.run(rank, compute, meeting.exchange(rank))
            found[rank] = done
        except Death:
            meeting.die(rank)

    threads = [threading.Thread(target=live, args=(rank,), daemon=True) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()
    return found


def test_alone_it_is_the_sum_over_all_samples() -> None:
    with mm.Job(np.zeros(32, np.float32), batch=16, lanes=4) as job:
        with pytest.raises(mm.JobError, match=r"before job\.share"):
            job.evaluate(DATA, right)
        job.share(np.zeros(1, np.float32))
        found = job.evaluate(DATA, right)
        roots, odd = job.evaluate(DATA, scores, rows=True)
        with pytest.raises(mm.JobError, match="no samples"):
            job.evaluate(DATA[:0], right)
    assert found["count"] == 50 and found["sum"] == DATA.sum() and found["both"].tolist() == [13.0, 50.0]
    assert roots.tobytes() == np.sqrt(DATA).tobytes() and odd.tolist() == [0, 1] * 25 and odd.dtype == np.int32


def test_a_function_that_takes_weights_sees_one_shape() -> None:
    shapes = []

    def weighed(chunk: Any, weight: Any) -> Any:
        shapes.append((chunk.shape, weight.dtype, weight.sum()))
        return {"sum": (chunk * weight).sum(), "count": int(weight.sum())}

    def rows(chunk: Any, weight: Any) -> Any:
        return chunk + 0 * weight

    with mm.Job(np.zeros(32, np.float32), batch=16, lanes=4) as job:
        job.share(np.zeros(1, np.float32))
        assert job.evaluate(DATA, weighed) == {"sum": DATA.sum(), "count": 50}
        assert job.evaluate(DATA, rows, rows=True).tolist() == DATA.tolist()
    assert {shape for shape, *_ in shapes} == {(4,)} and [count for *_, count in shapes] == [4] * 12 + [2]
    assert {dtype for _, dtype, _ in shapes} == {np.dtype(np.float32)}


@settings(max_examples=60)
@given(
    workers=some.integers(1, 5),
    size=some.integers(1, 60),
    chunk=some.integers(1, 9),
    deaths=some.dictionaries(some.integers(0, 4), some.integers(0, 12), max_size=4),
)
def test_all_survivors_have_the_bits_of_one_worker(workers: int, size: int, chunk: int, deaths: dict[int, int]) -> None:
    """Rank `workers - 1` lives."""
    mortal = {rank: after for rank, after in deaths.items() if rank < workers - 1}
    data = np.random.default_rng(size).normal(size=size).astype(np.float32) ** 2
    chunks = Chunks(data, size, chunk)
    alone = evaluated(chunks, 1)[0]
    found = evaluated(chunks, workers, deaths=mortal)
    rows = evaluated(chunks, workers, scores, mortal)
    assert workers - 1 in found
    for done in found.values():
        total = done.total()
        assert total["count"] == size and total["sum"] == alone.total()["sum"]
        assert sorted(done.by) == list(range(chunks.count)) and done.ranks == next(iter(found.values())).ranks
    for done in rows.values():
        assert done.all_rows()[0].tobytes() == np.sqrt(data).tobytes()


def test_10003_samples_on_one_to_five_workers_are_the_same_integers() -> None:
    answers = np.random.default_rng(1).integers(0, 10, 10_003)
    chunks = Chunks(answers, len(answers), 64)

    def correct(chunk: Any, weight: Any) -> Any:
        return {"right": int(((chunk == 3) * weight).sum()), "seen": int(weight.sum())}

    want = {"right": int((answers == 3).sum()), "seen": 10_003}
    for workers in range(1, 6):
        deaths = {0: 7} if workers > 1 else {}
        assert [done.total() for done in evaluated(chunks, workers, correct, deaths).values()] == [want] * (
            workers - len(deaths)
        )


def test_chunks_of_the_dead_are_computed_by_the_others_and_no_others() -> None:
    computed: list[int] = []

    def counted(chunk: Any) -> Any:
        computed.append(int(chunk[0]) // 10)
        return len(chunk)

    chunks = Chunks(DATA, 50, 10)
    meeting: list[Sequence[int]] = [[0, 1, 2], [0, 1], [0, 1]]
    done = Evaluation(chunks)
    others = iter([{1: b""}, {1: zlib.compress(to_bytes({1: 10, 4: 10}))}, {1: zlib.compress(to_bytes({}))}])

    def exchange(data: bytes) -> dict[int, bytes]:
        present, brought = meeting.pop(0), next(others)
        return {rank: data if rank == 0 else brought.get(rank, b"") for rank in present}

    done.run(0, lambda number: chunks.computed(number, counted, weighted=False), exchange)
    assert done.total() == 50 and done.ranks == [0, 1, 0, 0, 1]
    assert computed == [0, 3, 2]  # its own, and then that of the dead worker


@pytest.mark.parametrize(
    ("function", "rows", "words"),
    [
        (lambda chunk: chunk, False, "rows=True"),
        (lambda chunk: {"few": 1} if len(chunk) < 8 else {"many": 1}, False, "the same names"),
        (lambda _: "right", False, "return numbers"),
        (lambda _: None, False, "returned nothing"),
        (lambda chunk: chunk.sum(), True, "one row per sample"),
        (lambda chunk: chunk[:1], True, "one row per sample"),
        (lambda chunk: np.zeros((len(chunk), len(chunk))), True, "one row per sample"),
    ],
)
def test_results_that_do_not_fit_together_are_one_sentence(function: Any, rows: bool, words: str) -> None:
    chunks = Chunks(DATA, 50, 8)
    done = Evaluation(chunks)
    done.run(0, lambda number: chunks.computed(number, function, weighted=False), lambda data: {0: data})
    with pytest.raises(mm.JobError, match=words) as caught:
        done.all_rows() if rows else done.total()
    assert "\n" not in str(caught.value)
