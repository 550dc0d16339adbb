"""Rows of tables: what they are at the beginning, how their gradients travel and add up, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshmend as mm
from meshmend.job.embeddings.holder import TableHolder
from meshmend.job.embeddings.message import Laned, RowLayout
from meshmend.job.embeddings.placement import Placement
from meshmend.job.embeddings.shape import Shape, stretches
from meshmend.job.embeddings.shelf import Shelf

SHAPE = Shape((50, 7, 300), 3, memory=1, seed=5)
ADAGRAD = mm.row_adagrad(0.1)


def holder(buddies: int = 0) -> TableHolder:
    return TableHolder(SHAPE, ADAGRAD, Placement(SHAPE.slices, buddies), Shelf(4))


def test_slices_cover_all_rows_once_and_rows_begin_alike_however_they_are_asked_for() -> None:
    every = np.arange(357)
    assert SHAPE.bounds[0] == 0 and SHAPE.bounds[-1] == 357 and (np.diff(SHAPE.bounds) >= 16).all()
    first = SHAPE.first(every)
    some = np.random.default_rng(0).permutation(357)[:40]
    assert (SHAPE.first(some) == first[some]).all() and not first[:, 3].any()
    assert np.abs(first[57:, :3]).max() <= 300**-0.5 < np.abs(first[:50, :3]).max() <= 50**-0.5
    assert len(np.unique(first[:, :3])) > 1000 and abs(first[57:, :3].mean()) < 0.004


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), whole=st.booleans(), members=st.integers(1, 4))
def test_gradients_arrive_as_they_were_whoever_computes_a_lane(seed: int, whole: bool, members: int) -> None:
    random = np.random.default_rng(seed)
    places = RowLayout(5, 6, 4, 3, 9, 2, whole)
    rows, gradients = random.integers(0, 357, (6, 4)), random.normal(size=(6, 4, 3)).astype(np.float32)
    parts = np.zeros((members, places.size + 2), np.int32 if whole else np.float32)
    for lane in range(6):
        places.write(parts[random.integers(members)], Laned(lane, None, rows[lane], gradients[lane]))
    places.say(parts[0], [(3, 0, 0xFFFF1234)])
    places.say(parts[-1], [(3, 1, 77), (8, 5, 1)])
    found, values = places.read(parts.sum(axis=0, dtype=parts.dtype))
    assert (found == rows.reshape(-1)).all() and values.tobytes() == gradients.tobytes()
    said = places.said(parts.sum(axis=0, dtype=parts.dtype))
    assert said[3].tolist() == [0xFFFF1234, 77] and said.sum() == 0xFFFF1234 + 77


def test_an_update_is_that_of_all_rows_at_once_in_the_order_of_the_lanes() -> None:
    random = np.random.default_rng(1)
    rows, gradients = random.integers(0, 357, 500), random.normal(size=(500, 3)).astype(np.float32)
    one, whole = holder(), SHAPE.first(np.arange(357))
    for step in range(3):
        one.update(step + 1, [0], rows, gradients)
        sums = np.zeros((357, 3), np.float32)
        for row, gradient in zip(rows, gradients, strict=True):
            sums[row] += gradient
        used = np.unique(rows)
        new, memory = ADAGRAD.update(whole[used, :3], sums[used], whole[used, 3:])
        whole[used] = np.concatenate([new, memory], axis=1)
    assert one.rows(np.arange(357)).tobytes() == whole[:, :3].tobytes()
    order, places = stretches(rows, SHAPE.bounds)
    assert all((np.diff(order[here][rows[order[here]] == row]) > 0).all() for _, here in places for row in (3, 60))


def test_copies_that_differ_end_the_run() -> None:
    one = holder(buddies=1)
    one.placement = one.placement.updated([0, 1])
    said = np.zeros((SHAPE.slices, 2), np.int64)
    said[4] = 12, 0  # the other has just been filled, and has said nothing
    one.compare(said)
    said[4] = 12, 13
    with pytest.raises(mm.JobError, match="slice 4 of the embedding tables that workers"):
        one.compare(said)


def test_a_row_does_not_depend_on_how_many_are_updated_with_it() -> None:
    random = np.random.default_rng(2)
    rows, gradients, memory = (random.normal(size=(90, width)).astype(np.float32) ** 2 for width in (33, 33, 1))
    every = ADAGRAD.update(rows, gradients, memory)
    for row in range(90):
        here = slice(row, row + 1)
        one = ADAGRAD.update(rows[here], gradients[here], memory[here])
        assert [part.tobytes() for part in one] == [part[here].tobytes() for part in every]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: mm.EmbeddingTables([], 4, ADAGRAD), "at least one table"),
        (lambda: mm.EmbeddingTables([3, 0], 4, ADAGRAD), "at least one row"),
        (lambda: mm.EmbeddingTables([3], 0, ADAGRAD), "width 0"),
        (lambda: mm.EmbeddingTables([3], 4, "adagrad"), "mm.row_adagrad"),  # type: ignore[arg-type]
        (lambda: mm.row_sgd(0), "above 0"),
        (lambda: mm.EmbeddingTables([3], 4, ADAGRAD).rows([[0]]), "before job.share"),
        (
            lambda: mm.EmbeddingTables([3, 9], 4, ADAGRAD).gradient([[0, 9]], 0),
            "ids from 9 to 9 for table 1",
        ),
        (lambda: mm.EmbeddingTables([3, 9], 4, ADAGRAD).gradient([[0]], 0), "one column per table"),
        (
            lambda: mm.EmbeddingTables([3], 4, ADAGRAD).gradient([[0]], np.zeros(4)),
            r"give float32 of shape \(1, 1, 4\)",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(make: object, said: str) -> None:
    with pytest.raises(mm.JobError, match=said):
        make()  # type: ignore[operator]


def test_misuse_in_a_job_is_told() -> None:
    def tables() -> mm.EmbeddingTables:
        return mm.EmbeddingTables([8], 2, ADAGRAD)

    data = np.arange(8)[:, None]
    with mm.Job(data, batch=4, lanes=2, wire="bf16") as job, pytest.raises(mm.JobError, match="wire='bf16'"):
        job.share(np.zeros(1, np.float32), tables=tables())
    with mm.Job(data, batch=4, lanes=2) as job:
        used = tables()
        state = job.share(np.zeros(1, np.float32), tables=used)
        with pytest.raises(mm.JobError, match="return a pair"):
            job.sum(np.sum)
        job.sum(lambda lane: (np.float32(0), used.gradient(lane, np.ones((2, 1, 2), np.float32))))
        with pytest.raises(mm.JobError, match=r"between job\.sum and job\.commit"):
            used.rows(data)
        job.commit(state)
        assert used.held == used.nbytes == 8 * 3 * 4
    with mm.Job(data, batch=4, lanes=2) as job, pytest.raises(mm.JobError, match="tables that belong to another job"):
        job.share(np.zeros(1, np.float32), tables=used)
