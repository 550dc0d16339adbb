"""The fold that pages, reports and metrics are made from: the same as the audit, however the events come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshmend import report
from meshmend.base import regular_files
from meshmend.errors import JobError
from meshmend.report.costs import Cost
from meshmend.report.curves import of_metric, of_step_time, thin
from meshmend.report.goodput import REASONS, Goodput
from meshmend.report.history import History, read_history
from meshmend.report.roster import Condition
from meshmend.telemetry import Ended, Epoch, Event, Events, Formed, Log, Saved, Why
from meshmend.telemetry.compaction import compact
from tests.report.made import Attempt, run
from tests.report.test_audit import runs
from tests.report.test_weeks import written

KILLED = Attempt(0, 40, 4, {20: 2}, {30: 2})


def folded(events: Sequence[Event], cuts: Sequence[int] = ()) -> History:
    """A history of events that come in several polls."""
    history = History(Path("nowhere"))
    edges = [0, *sorted(cuts), len(events)]
    for begin, end in pairwise(edges):
        history.add(events[begin:end])
    return history


@given(runs(), st.data())
@settings(max_examples=40, deadline=None)
def test_it_proves_what_the_audit_proves_however_the_events_come(
    tmp_path_factory: pytest.TempPathFactory,
    made: tuple[list[Event], list[Attempt], dict[str, int]],
    data: st.DataObject,
) -> None:
    folder = written(tmp_path_factory.mktemp("run"), made[0])
    whole = read_history(str(folder))
    expected = report.check(Events(folder))
    assert whole.account(1) == expected
    events = Events(folder).in_order()
    history = folded(events, data.draw(st.lists(st.integers(0, len(events)), max_size=5)))
    history.folder = folder
    assert history.account(1) == expected
    for one in (whole, history):
        assert one.job(1).incidents() == report.incidents(Events(folder))
        good = one.goodput(1)
        assert 0 <= good.share <= 1
        assert all(a.end <= b.begin for a, b in pairwise(good.pieces))
        lost = sum(good.seconds.values())
        assert np.mean(good.windows(7)) == pytest.approx(1 - lost / good.wall, abs=1e-9)  # times are thousands


def test_compacted_files_tell_the_same(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", run([Attempt(0, 300, 3, {100: 1}, {150: 1})]))
    before = read_history(str(folder))
    for path in (folder / "events").glob("worker-*.jsonl"):
        compact(path)
    after = read_history(str(folder))
    assert after.account(1) == before.account(1)
    assert after.roster.lanes == before.roster.lanes and after.count == before.count
    assert after.job(1).latest == pytest.approx(before.job(1).latest, rel=1e-6)
    for mine, theirs in zip(after.job(1).incidents(), before.job(1).incidents(), strict=True):
        assert mine.total == pytest.approx(theirs.total, abs=1e-5)


def test_workers_are_what_was_last_written_of_them() -> None:
    events = run([KILLED])
    at = next(place for place, event in enumerate(events) if type(event).__name__ == "Died")
    history = folded(events[: at + 1])
    dead = history.roster.workers[2]
    assert dead.condition is Condition.DEAD and dead.last_death == "SIGKILL" and dead.deaths == 1
    assert {one.condition for rank, one in history.roster.workers.items() if rank != 2} == {Condition.ACTIVE}
    again = next(place for place, event in enumerate(events) if type(event).__name__ == "Started" and place > at)
    assert folded(events[: again + 1]).roster.workers[2].condition is Condition.STARTING
    joined = next(p for p, event in enumerate(events) if isinstance(event, Formed) and event.why is Why.JOIN)
    assert folded(events[: joined + 1]).roster.workers[2].condition is Condition.STANDBY
    whole = folded(events)
    assert whole.roster.workers[2].condition is Condition.ACTIVE and whole.roster.workers[2].starts == 2
    whole.add([Ended(time=9e3, epoch=Epoch(0, 2), status=0)])
    assert {one.condition for one in whole.roster.workers.values()} == {Condition.FINISHED}


def test_a_late_word_of_a_dead_worker_does_not_kill_its_replacement() -> None:
    events = run([KILLED])
    died = next(event for event in events if type(event).__name__ == "Died")
    late = replace(died, process=1)
    history = folded([*events, late])
    assert history.roster.workers[2].condition is Condition.ACTIVE  # whose process is 2


def test_costs_name_who_computed_the_lanes_of_the_dead() -> None:
    history = folded(run([KILLED], lanes=12, batch=24, size=240))
    job = history.job(1)
    killed, joined = job.costs(job.incidents())
    assert killed.lost == {2: 3} and sum(killed.taken.values()) == 3 and 2 not in killed.taken
    assert (killed.step, killed.lanes, killed.samples) == (20, 3, 6)
    assert joined == Cost()


def test_a_resume_costs_the_steps_that_are_done_again() -> None:
    history = folded(run([Attempt(0, 30, 2), Attempt(20, 50, 2)]))
    job = history.job(1)
    (cost,) = job.costs(job.incidents())
    assert cost.repeated == (20, 30) and cost.steps == 10 and cost.samples == 80
    seconds = history.goodput(1).seconds
    assert seconds["repeated"] == pytest.approx(1.0, rel=0.01) and seconds["start"] > 0
    assert [*seconds] == [*REASONS]


def test_goodput_counts_a_moment_once() -> None:
    from meshmend.report.goodput import LostTime, _apart

    found = [LostTime(0, 4, "recovery"), LostTime(3, 6, "start"), LostTime(5, 5.5, "down"), LostTime(9, 12, "recovery")]
    pieces = _apart(found, 1, 10)
    assert [(one.begin, one.end, one.reason) for one in pieces] == [
        (1, 3, "recovery"), (3, 5, "start"), (5, 5.5, "down"), (5.5, 6, "start"), (9, 10, "recovery"),
    ]  # fmt: skip
    assert Goodput(1, 10, pieces).share == pytest.approx(1 - 6 / 9)


def test_curves_keep_every_spike() -> None:
    history = folded(run([Attempt(0, 2000, 2, {700: 1})]))
    job = history.job(1)
    spans = (job.audit.ledger.settle(), job.audit.ledger.counting())[1]
    steps, seconds = of_step_time(job.state.timeline, spans)
    assert steps.tolist() == list(range(1, 2000)) and seconds.argmax() == 699
    for curve in (of_metric(spans), (steps, seconds)):
        few = thin(curve, 50)
        assert len(few[0]) <= 102 and few[1].min() == curve[1].min() and few[1].max() == curve[1].max()
        assert few[0][0] == curve[0][0] and few[0][-1] == curve[0][-1]


def test_the_metric_is_the_loss_or_the_first_or_the_one_asked_for(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", [_other(event) for event in run([Attempt(0, 5, 2)])])
    assert read_history(str(folder)).job(1).metric == "accuracy"
    assert read_history(str(folder), "time").job(1).metric == "time"
    usual = written(tmp_path / "usual", run([Attempt(0, 5, 2)]))
    assert read_history(str(usual)).job(1).metric == "loss"


def _other(event: Event) -> Event:
    return replace(event, metrics={"accuracy": 0.5, "time": 1.0}) if hasattr(event, "metrics") else event


def test_jobs_are_told_apart(tmp_path: Path) -> None:
    first = run([Attempt(0, 5, 2)])
    second = [
        replace(event, epoch=event.epoch._replace(world=event.epoch.world + 4), time=event.time + 100)
        for event in run([Attempt(0, 9, 2)], lanes=2, batch=4)
        if type(event).__name__ not in ("Began", "Started")
    ]
    second = [replace(event, job=2) if hasattr(event, "job") else event for event in second]
    history = read_history(str(written(tmp_path / "run", [*first, *second])))
    accounts = {number: history.account(number) for number in history.jobs}
    assert {n: (a.steps, a.batch, a.clean) for n, a in accounts.items() if not isinstance(a, str)} == {
        1: (5, 8, True), 2: (9, 4, True),
    }  # fmt: skip


def test_damage_costs_itself_only(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", run([Attempt(0, 50, 3)]))
    path = folder / "events" / "worker-1.jsonl"
    lines = path.read_bytes().split(b"\n")
    lines[10], lines[20], lines[30] = b"\xff\xfegarbage", b'{"kind":"Committed","time":1}', lines[30][:30]
    path.write_bytes(b"\n".join(lines))
    (folder / "events" / "worker-9.jsonl").mkdir()
    (folder / "run.json").write_text("{ not json")
    history = read_history(str(folder))
    assert history.description == {}
    assert len(history.damaged) == 5
    assert all(
        sum(word in text for text in history.damaged) == 1 for word in ("line 11", "line 21", "line 31", "run.json")
    )
    account = history.account(1)
    assert not isinstance(account, str) and account.clean and account.steps == 50


def test_a_run_without_a_job_is_a_sentence(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", run([Attempt(0, 3, 1)])[:1])
    account = read_history(str(folder)).account(1)
    assert isinstance(account, str) and "no worker has opened a job" in account
    with pytest.raises(JobError, match="there is no run in"):
        read_history(str(tmp_path / "other"))


def test_a_run_that_may_not_be_read_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path / "run", run([Attempt(0, 3, 1)]))

    def forbidden(*_: object, **__: object) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", forbidden)  # root may read everything
    with pytest.raises(JobError, match=r"cannot read the run in .* \(Permission denied\): its owner must let you"):
        read_history(str(folder))


def test_a_file_that_may_not_be_read_is_left_out_with_a_sentence_that_says_who_can_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(tmp_path / "run", run([Attempt(0, 3, 2)]))
    allowed = regular_files.opened

    def opened(path: Path) -> BinaryIO:
        if path.name == "worker-1.jsonl":
            raise PermissionError(13, "Permission denied")  # root may read everything
        return allowed(path)

    monkeypatch.setattr(regular_files, "opened", opened)
    (note,) = [one for one in read_history(str(folder)).damaged if "worker-1" in one]
    assert note.endswith("worker-1.jsonl (Permission denied): its owner must let you")


def test_checkpoints_are_kept_in_order(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", run([Attempt(0, 5, 2)]))
    log = Log(folder, "worker-0")
    for step in (2, 4):
        log.write(Saved(time=1001.0 + step, epoch=Epoch(0, 1), step=step, path="x", seconds=0.1, nbytes=7))
    log.close()
    assert [one.step for one in read_history(str(folder)).job(1).checkpoints] == [2, 4]


def test_recovery_is_what_a_failure_takes_beyond_an_ordinary_step() -> None:
    joined = folded(run([KILLED]))  # the kill takes half a step, and the join a second: nine steps more than usual
    assert joined.goodput(1).seconds["recovery"] == pytest.approx(0.9, abs=0.01)
