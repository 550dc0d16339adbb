"""Several sums in a step: what each says of itself, how grids are kept apart, and what the audit makes of them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import meshmend as mm
from meshmend import report
from meshmend.job.exchange import check_calls
from meshmend.job.protocol import Divergence
from meshmend.job.protocol.agreement import check
from meshmend.job.reduction.base import WireFormat
from meshmend.job.reduction.float32 import Float32
from meshmend.job.reduction.footer import CALLS, MOST_ROUNDS, MOST_SUMS, Call, Footer
from meshmend.job.transport.shared_memory import SharedMemory
from meshmend.telemetry import Committed, Epoch, Opened, Steps, parse

X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)


@pytest.mark.parametrize("reduction", ["float", "exact"])
def test_each_sum_has_its_own_tree(reduction: str) -> None:
    with mm.Job(X, batch=16, lanes=4, reduction=reduction) as job:
        state = job.share(np.zeros(4, np.float32))
        for step in job.steps(4):
            mean = job.sum(lambda lane: lane.sum(0)) / np.float32(job.batch)
            found = job.sum(lambda lane, mean=mean: {"far": np.abs(lane - mean).max(), "n": np.float32(len(lane))})
            assert found["n"] == 16 and np.isfinite(found["far"])
            ids = job.training.lanes
            batch = np.concatenate([X[ids.ids(step, lane)] for lane in range(4)])
            assert np.allclose(mean, batch.mean(0), atol=1e-4)
            job.commit(state + mean)


def test_each_sum_draws_numbers_of_its_own() -> None:
    with mm.Job(X, batch=16, lanes=4) as job:
        job.share(np.zeros(1, np.float32))
        for _ in job.steps(1):
            drawn = [job.sum(lambda lane, draws: lane.sum() + draws.rng.normal(size=3)) for _ in range(2)]
            assert not np.array_equal(*drawn)
            job.commit(np.zeros(1, np.float32))


def test_calls_go_through_a_footer() -> None:
    every = [Call(word, joined) for word in CALLS for joined in (None, 0, MOST_ROUNDS - 1)]
    every += [Call("sum", turn=turn) for turn in range(MOST_SUMS)]
    assert [Call.of(call.number) for call in every] == every
    assert len({call.number for call in every}) == len(every) - 1  # the sum with turn 0 is there twice
    assert max(call.number for call in every) < 2**24


def test_members_at_different_sums_are_found_whatever_their_states() -> None:
    footer, part = Footer(2, 3), np.zeros(600, np.float32)
    total = np.zeros_like(part)
    for rank, turn in ((0, 1), (2, 0)):
        footer.write(part, [rank // 2], rank, 100 + rank, call=Call("sum", turn=turn))
        total += part
    assert footer.read(total).astray
    with pytest.raises(mm.JobError, match=r"worker 0 called job\.sum again, as sum 2 of its step, where worker 2"):
        check_calls(footer.calls(total), 7)
    footer.write(part, [0], 0, 100, call=Call("sum", turn=1))
    assert not footer.read(part).astray


def test_one_that_leaves_between_two_sums_of_the_others_does_not_cost_them_its_lanes() -> None:
    footer, part = Footer(2, 2), np.zeros(600, np.float32)
    total = np.zeros_like(part)
    footer.write(part, [0], 0, 100, call=Call("sum", turn=1))
    total += part
    footer.write(part, [], 1, 101, leaving=True, call=Call("end"))
    total += part
    with pytest.raises(Divergence, match="1 of 2 workers left the loop"):
        check(footer.read(total), 0)


def test_a_small_sum_moves_only_what_it_has() -> None:
    size, used, tail = 1000, 10, 900
    rows = [np.full((3, size), rank + 1, np.float32) for rank in range(3)]
    for row in rows:
        row[1:] = -1
    buffers = [
        SimpleNamespace(wire=WireFormat(Float32, size), part=row[0], total=lambda number, row=row: row[1 + number % 2])
        for row in rows
    ]
    members = [SharedMemory(buffers, here, lambda *_: None, room=lambda: slice(used, tail)) for here in range(3)]
    for member in members:
        member.reduce_scatter(0)
    for member in members:
        member.all_gather(0)
    for row in rows:
        assert (row[1, :used] == 6).all() and (row[1, tail:] == 6).all() and (row[1, used:tail] == -1).all()


def lines(more: list[list[list[int]]]) -> list[Committed | Opened]:
    opened = Opened(
        epoch=Epoch(0, 1, 0), rank=0, step=0, size=64, batch=16, lanes=4, seed=0, reduction="exact", job=1,
        in_order=False,
    )  # fmt: skip
    line = Committed(epoch=Epoch(0, 1, 0), rank=0, step=0, by=[[0, 4]], digest="0" * 12, more=more)
    return [opened, line, replace(line, step=1)]


def test_the_audit_counts_the_lanes_of_every_sum() -> None:
    account = report.check(lines([[[0, 4]], [[0, 4]]]))
    assert account.clean and account.lanes == 24 and account.samples == 32
    for runs, said in (
        ([[0, 3]], "lane 3 was not counted by any worker"),
        ([[0, 5]], "5 lanes were counted where there are 4"),
    ):
        found = report.check(lines([[[0, 4]], runs])).findings
        assert len(found) == 2 and all(said in one and "sum 3" in one for one in found), found
    strange = report.check(lines([[[0, 2], [7, 2]]])).findings
    assert any("worker 7, which never took part" in one for one in strange), strange
    both = [*lines([[[0, 4]]]), replace(lines([[[0, 4]]])[1], rank=0, more=[])]  # a worker that wrote it twice
    assert not report.check(both).clean


def test_lines_of_several_sums_are_gathered_and_come_back() -> None:
    _, *written = lines([[[0, 1], [1, 3]]])
    gathered = Steps.gather([line for line in written if isinstance(line, Committed)])
    assert [one.more for one in gathered.lines()] == [[[[0, 1], [1, 3]]]] * 2
    assert parse(written[0].values()) == written[0]
    assert "more" not in lines([])[1].values()  # a step with one sum is written as it always was
