"""A job as a world of one."""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any

import ml_dtypes
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


def test_nothing_is_said_of_a_state_before_its_sum_is_known_to_have_been_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device may still be reading a total when `job.sum` returns."""
    said: list[str] = []
    with mm.Job(X, batch=8, lanes=4) as job:
        state = job.share(np.float32(0))
        training = job.training
        monkeypatch.setattr(training.session.messages, "settle", lambda: said.append("settled"))
        monkeypatch.setattr(training.ledger, "committed", lambda *_: said.append("recorded"))
        monkeypatch.setattr(training.session, "digested", lambda *_: said.append("final"))
        for _ in job.steps(2):
            job.sum(lambda lane: lane.sum())
            job.commit(state)
    assert said == ["settled", "recorded", "final"] * 2


def test_nothing_is_said_of_a_sum_that_is_not_finite_before_either(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    bad = np.where(X == 5, np.inf, X).astype(np.float32)
    with mm.Job(bad, batch=8, lanes=4, nonfinite="skip") as job:
        state, training = job.share(np.float32(0)), job.training
        monkeypatch.setattr(training.session.messages, "settle", lambda: said.append("settled"))
        monkeypatch.setattr(training.ledger, "skipped", lambda *_: said.append("skipped"))
        for _ in job.steps(3):
            job.sum(lambda lane: lane.sum())
            job.commit(state)
    assert said.count("skipped") == 1 and said[said.index("skipped") - 1] == "settled"


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
        ({"reduction": "odd"}, "reduction='odd'; choose from float, exact"),
        ({"reduction": "exact", "nonfinite": "pass"}, "choose 'error' or 'skip'"),
        ({"wire": "fp8"}, "wire='fp8'; choose from float32, bf16"),
        ({"wire": "bf16", "reduction": "exact"}, "wire='bf16' .*reduction='exact'.*'float32'"),
        ({"batch": 8.0}, r"batch=8\.0: give an integer"),
        ({"lanes": "4"}, "lanes='4': give an integer"),
        ({"seed": None}, "seed=None: give an integer"),
        ({"seed": -1}, "seed=-1: give an integer of at least 0"),
        ({"data": X.tolist()}, r"the data is a list, .* numpy\.asarray"),
        ({"data": (X, X.tolist())}, "the data is a list"),
        ({"data": (one for one in X)}, r"the data is a generator; .* len\(\) and data\[ids\]"),
        ({"data": np.float32(1)}, "the data is a float32"),
        ({"data": frozenset(range(24))}, "the data is a frozenset"),
    ],
)
def test_mistakes_are_one_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(mm.JobError, match=message):
        mm.Job(**{"data": X, "batch": 8, "lanes": 4, **options})


def test_numbers_of_numpy_are_numbers() -> None:
    with mm.Job(X, batch=np.int64(8), lanes=np.uint8(4), seed=np.int32(3)) as job:
        job.share(np.float32(0))
        assert [type(one) for one in (job.batch, job.lanes, job.training.config.identity()["seed"])] == [int, int, int]
        total = job.sum(lambda lane: lane.sum())
    with mm.Job(X, batch=8, lanes=4, seed=3) as job:
        job.share(np.float32(0))
        assert job.sum(lambda lane: lane.sum()) == total


@pytest.mark.parametrize("value", [np.zeros(3), [1.0, 2.0], None, 1j, "much", {}])
def test_a_metric_that_is_no_single_number_is_refused_by_name(value: Any) -> None:
    with mm.Job(X, batch=8, lanes=4) as job:
        state = job.share(np.float32(0))
        job.sum(lambda lane: lane.sum())
        with pytest.raises(mm.JobError, match=r"metric 'odd' is a .*; give a single number"):
            job.commit(state, good=np.ones((1, 1)), odd=value)


@dataclass
class Record:
    w: Any


def test_a_state_that_is_no_tree_of_arrays_is_refused() -> None:
    job = mm.Job(X, batch=8, lanes=4)
    with pytest.raises(mm.JobError, match=r"leaf 'a' of the state is a Record, .*register_dataclass|\['a'\]"):
        job.share({"a": Record(X)})
    with pytest.raises(mm.JobError, match=r"cannot sort|JAX cannot flatten"):
        job.share({"a": X, 1: X})


def test_dicts_of_all_kinds_come_back_as_they_are() -> None:
    tree = {"z": OrderedDict(b=np.ones(1), a=np.zeros(2)), "c": defaultdict(int, {"y": np.ones(3), "x": np.zeros(1)})}
    with mm.Job(X, batch=8, lanes=4) as job:
        job.share(tree)
        found = job.sum(lambda _: tree)
    assert type(found["z"]) is OrderedDict and [*found["z"]] == ["b", "a"] and found["z"]["b"] == 4
    assert found["c"]["new"] == 0 and found["c"]["y"].tolist() == [4, 4, 4]
    assert tree["z"]["b"] == 1


def test_another_tree_is_refused_with_its_leaf() -> None:
    with mm.Job(X, batch=8, lanes=4, check=False) as job, pytest.raises(mm.JobError, match="return the same"):
        job.share(np.float32(0))
        sizes = iter([1, 2])
        job.sum(lambda _: {"w": np.zeros(next(sizes), np.float32)})


def test_one_alone_is_first_has_seat_0_and_may_pause() -> None:
    job = mm.Job(X, batch=8, lanes=4)
    with job.pause():
        assert (job.first, job.rank) == (True, 0)


WAYS: list[dict[str, Any]] = [{}, {"wire": "bf16"}, {"reduction": "exact"}]


def summed(leaf: Any, **options: Any) -> Any:
    with mm.Job(X, batch=8, lanes=4, **options) as job:
        job.share(np.float32(0))
        return job.sum(lambda _: leaf)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("leaf", [np.array([1j]), np.array([True]), np.array("text"), np.array([None])])
def test_what_has_no_sum_is_refused_by_name(way: dict[str, Any], leaf: Any) -> None:
    with pytest.raises(mm.JobError, match=r"leaf 'value' has type .* which cannot be summed"):
        summed(leaf, **way)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint64])
def test_whole_numbers_are_summed_exactly_or_refused(way: dict[str, Any], dtype: type) -> None:
    most = 2**24 // 4
    for value in (most, most - 1, 1, 0) + (() if dtype == np.uint64 else (-most, 1 - most)):
        found = summed(np.full(100, value, dtype), **way)
        assert found.dtype == dtype
        assert (found == 4 * value).all()
    for value in (most + 1, np.iinfo(dtype).max) + (() if dtype == np.uint64 else (-most - 1, np.iinfo(dtype).min)):
        with pytest.raises(mm.JobError, match=f"leaf 'value' holds an integer beyond {most}"):
            summed(np.array([1, value], dtype), **way)


@pytest.mark.parametrize("way", WAYS)
def test_a_sum_that_its_own_type_cannot_hold_is_refused(way: dict[str, Any]) -> None:
    assert (summed(np.full(100, 63, np.uint8), **way) == 252).all()
    assert summed(np.array([31, -32], np.int8), **way).tolist() == [124, -128]
    for leaf in (np.array([1, 64], np.uint8), np.array([32], np.int8), np.array([-33], np.int8)):
        with pytest.raises(mm.JobError, match=r"step 0: the sum of 'value' ranges from .* cannot hold"):
            summed(leaf, **way)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.float8_e5m2])  # what bf16 cannot hold, float32 cannot either
def test_a_sum_too_large_for_its_narrow_type_is_not_finite(way: dict[str, Any], dtype: Any) -> None:
    good, most = np.array(2.0**13, dtype), ml_dtypes.finfo(dtype).max
    for size in (1, 100):
        assert (summed(np.full(size, good), nonfinite="error", **way) == 2**15).all()
        with pytest.raises(mm.JobError, match="step 0: the sum of 'value' is too large for its type"):
            summed(np.full(size, most, dtype), nonfinite="error", **way)
    with mm.Job(X, batch=8, lanes=4, nonfinite="skip", **way) as job:
        state = job.share(np.float32(0))
        for _ in job.steps(3):
            assert job.sum(lambda _: np.array(most if job.step == 1 else good, dtype)) == 2**15
            job.commit(state)
        assert job.step == 3


def test_words_out_of_order_are_refused() -> None:
    with mm.Job(X, batch=8, lanes=4) as job:
        with pytest.raises(mm.JobError, match=r"job\.sum was called before job\.share"):
            job.sum(lambda lane: lane.sum())
        with pytest.raises(mm.JobError, match=r"job\.commit was called before job\.share"):
            job.commit(np.float32(0))
        state = job.share(np.float32(0))
        for step in job.steps(2):
            with pytest.raises(mm.JobError, match=f"job.commit was called in step {step} before job.sum"):
                job.commit(state)
            job.sum(lambda lane: lane.sum())
            job.commit(state)
        assert job.step == 2
        with pytest.raises(mm.JobError, match=r"step 2 ended without job\.commit"):
            for _ in job.steps(4):
                job.sum(lambda lane: lane.sum())
        with pytest.raises(mm.JobError, match=r"job\.sum was called more than 64 times in step 2"):
            while True:
                job.sum(lambda lane: lane.sum())


LATE = """
import sys
import numpy as np, meshmend as mm

def gradient(lane):
    if job.step == int(sys.argv[1]):
        import jax.numpy
    return {"g": lane.sum(), "h": [lane.max()]}

with mm.Job(np.arange(24.0), batch=8, lanes=4, reduction="exact") as job:
    state = job.share({"w": np.zeros(1)})
    for _ in job.steps(3):
        grads = job.sum(gradient)
        job.commit({"w": state["w"] + grads["g"] + grads["h"][0]})
    print(job.step, "jax" in sys.modules)
"""


@pytest.mark.parametrize("when", ["0", "1"])
def test_jax_may_be_loaded_in_the_middle_of_a_job(when: str) -> None:
    found = subprocess.run([sys.executable, "-c", LATE, when], capture_output=True, text=True, check=False)
    assert found.stdout == "3 True\n", found.stderr


def epochs_from(step: int, epochs: int, per: int = 3, left: int | None = None) -> list[tuple[int, list[int]]]:
    """Which steps of which epochs a worker does that begins with this step, and a loop that has left so many epochs."""
    done: list[tuple[int, list[int]]] = []
    with mm.Job(X, batch=24 // per, lanes=4) as job:
        job.training.step, job.training.epochs_done = step, left  # as in a newcomer, or when a run is resumed
        state = job.share(np.float32(0))
        for epoch in job.epochs(epochs):
            done.append((epoch, []))
            for now in job.steps():
                job.sum(lambda lane: lane.sum())
                job.commit(state)
                done[-1][1].append(now)
        assert job.step == max(step, job.steps_in(epochs))
    return done


def test_epochs_begin_where_the_job_stands() -> None:
    assert epochs_from(0, 2) == [(0, [0, 1, 2]), (1, [3, 4, 5])]
    assert epochs_from(4, 3) == [(1, [4, 5]), (2, [6, 7, 8])]
    assert epochs_from(3, 2) == [(1, [3, 4, 5])]  # what follows epoch 0 is not repeated
    assert epochs_from(6, 2) == []


def test_an_epoch_is_over_when_the_loop_has_left_it(capsys: Any) -> None:
    """In a run that was stopped after the last step of epoch 0 or 1, and is resumed."""
    assert epochs_from(3, 2, left=0) == [(0, []), (1, [3, 4, 5])]
    assert epochs_from(6, 2, left=1) == [(1, [])]
    assert epochs_from(3, 2, left=1) == [(1, [3, 4, 5])]
    assert epochs_from(4, 2, left=0) == [(1, [4, 5])]
    assert not capsys.readouterr().out.count("job.epochs(n)")


def test_an_epoch_holds_the_steps_that_begin_in_it() -> None:
    with mm.Job(X[:20], batch=8, lanes=4) as job:
        state = job.share(np.float32(0))
        counts = []
        for _ in job.epochs(3):
            counts.append(0)
            for _ in job.steps():
                job.sum(lambda lane: lane.sum())
                job.commit(state)
                counts[-1] += 1
    assert counts == [3, 2, 3] and job.steps_in(3) == 8


def test_epochs_need_a_state_and_their_steps_need_epochs() -> None:
    with mm.Job(X, batch=8, lanes=4) as job:
        with pytest.raises(mm.JobError, match=r"before job\.share"):
            next(job.epochs(3))
        job.share(np.float32(0))
        with pytest.raises(mm.JobError, match=r"job\.epochs"):
            next(job.steps())


@pytest.mark.parametrize(("step", "said"), [(0, 0), (7, 1)])
def test_a_loop_that_repeats_what_was_done_is_told_once(step: int, said: int, capsys: Any) -> None:
    with mm.Job(X, batch=8, lanes=4) as job:
        job.training.step = step
        state = job.share(np.float32(0))
        for epoch in range(3):
            for _ in job.steps(3 * (epoch + 1)):
                job.sum(lambda lane: lane.sum())
                job.commit(state)
    assert capsys.readouterr().out.count("job.epochs(n)") == said


class Board:
    """A logger: what was logged, by whichever worker made it."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def add(self, text: str) -> int:
        self.lines.append(text)
        return len(self.lines)


class Somebody:
    """A job of which only this matters."""

    first = False


def test_a_logger_is_the_first_workers_also_when_that_is_another_one() -> None:
    made: list[str] = []
    lines: list[str] = []
    workers = [Somebody(), Somebody()]
    boards = [mm.on_first(job, lambda name=name: made.append(name) or Board(lines)) for job, name in zip(workers, "ab")]  # noqa: B905
    for text, first in (("before the first sum", None), ("one", 0), ("two", 0), ("three", 1)):
        for number, (worker, board) in enumerate(zip(workers, boards, strict=True)):
            worker.first = number == first
            assert (board.add(text) is None) == (number != first)
    assert lines == ["one", "two", "three"] and made == ["a", "b"]
