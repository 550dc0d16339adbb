"""`meshmend chaos` strikes a run whose state is divided only where another death would lose none of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshmend.base.processes import Identity
from meshmend.job.shm.inspect import Member
from meshmend.run.chaos import Copies
from meshmend.telemetry import Log, SingleCopies, folder_of
from meshmend.telemetry.epoch import Epoch

RUN = "divided"
NOBODY = Identity()


def members(*steps: int) -> list[Member]:
    return [
        Member(
            run=RUN, rank=rank, process=NOBODY, carrier=NOBODY, daemon=0, mpirun=1, agent=1, step=step,
            epoch=Epoch(0, 1), active=True,
        )
        for rank, step in enumerate(steps)
    ]  # fmt: skip


class Run:
    def __init__(self) -> None:
        folder = folder_of(RUN)
        (folder / "events").mkdir(parents=True)
        (folder / "run.json").write_text("{}")
        self.copies, self.logs = Copies(RUN), [Log(folder, f"courier-{rank}") for rank in range(2)]

    def single(self, slices: int, shrink: int, round: int, writer: int = 0) -> None:
        event = SingleCopies(epoch=Epoch(0, 1, shrink), rank=writer, round=round, slices=slices, of=8)
        self.logs[writer].write(event)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("MESHMEND_RUNS", str(tmp_path))
    return Run()


def test_a_run_in_which_every_worker_holds_everything_is_struck_at_any_time(run: Run) -> None:
    run.copies.failed(members(7, 7))
    assert run.copies.suffice(members(7, 7))


def test_after_a_failure_it_waits_for_steps_that_tell_what_is_left(run: Run) -> None:
    run.single(0, shrink=0, round=1)
    assert run.copies.suffice(members(7, 7))
    run.copies.failed(members(7, 6))
    assert not run.copies.suffice(members(8, 9)) and run.copies.suffice(members(9, 9))


def test_slices_with_one_copy_are_copied_first(run: Run) -> None:
    run.single(3, shrink=1, round=8)
    assert not run.copies.suffice(members(20, 20))
    run.single(0, shrink=1, round=10)
    assert run.copies.suffice(members(20, 20))


def test_what_another_worker_wrote_of_earlier_is_not_taken_for_news(run: Run) -> None:
    run.single(0, shrink=2, round=12)
    assert run.copies.suffice(members(20, 20))
    run.single(5, shrink=1, round=13, writer=1)
    assert run.copies.suffice(members(20, 20))
