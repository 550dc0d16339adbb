"""An audit gives the same whether the ledger is in lines or gathered, and keeps little of it in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from meshmend import report
from meshmend.telemetry import Committed, Event, Events, Log, Skipped
from meshmend.telemetry.compaction import compact
from tests.report.made import Attempt, run
from tests.report.test_audit import runs
from tests.strategies import modest


def written(folder: Path, events: list[Event]) -> Path:
    """The files of a run, as its writers write them."""
    logs: dict[str, Log] = {}
    for event in events:
        ledger = isinstance(event, Committed | Skipped) or type(event).__name__ == "Opened"
        writer = f"worker-{getattr(event, 'rank', 0)}" if ledger else "launcher"
        if isinstance(event, Committed):
            event = replace(event, digest=event.digest.rjust(12, "0"))
        if writer not in logs:
            logs[writer] = Log(folder, writer)
        logs[writer].write(event)
    for log in logs.values():
        log.close()
    return folder


def same_times(one: list[report.Incident], other: list[report.Incident]) -> None:
    assert [(i.what, i.level, i.step, i.was, i.epoch) for i in one] == [
        (i.what, i.level, i.step, i.was, i.epoch) for i in other
    ]
    for mine, theirs in zip(one, other, strict=True):
        assert mine.ordinary == pytest.approx(theirs.ordinary, abs=2e-6)
        assert mine.total == pytest.approx(theirs.total, abs=2e-6)


@given(runs())
@settings(max_examples=40, deadline=None)
def test_gathered_lines_prove_the_same(
    tmp_path_factory: pytest.TempPathFactory, made: tuple[list[Event], list[Attempt], dict[str, int]]
) -> None:
    folder = written(tmp_path_factory.mktemp("run"), made[0])
    account, incidents = report.check(Events(folder)), report.incidents(Events(folder))
    assert account.clean
    before = Events(folder).in_order()
    for path in folder.glob("events/*.jsonl"):
        compact(path)
    assert report.check(Events(folder)) == account
    same_times(report.incidents(Events(folder)), incidents)
    assert report.compare(before, Events(folder)) is None


def test_a_difference_inside_gathered_lines_is_found_and_named(tmp_path: Path) -> None:
    events = run([Attempt(0, 60, 3)])
    wrong = [
        replace(e, digest="f00") if isinstance(e, Committed) and (e.step, e.rank) == (41, 1) else e for e in events
    ]
    good, bad = written(tmp_path / "good", events), written(tmp_path / "bad", wrong)
    for path in tmp_path.glob("*/events/*.jsonl"):
        compact(path)
    (finding,) = report.check(Events(bad)).findings
    assert finding.startswith("step 41: the workers' states differ after it: worker 1 wrote digest 000000000f00")
    assert report.compare(Events(good), Events(bad)) == 41
    assert report.compare(Events(good), Events(good)) is None


def test_an_audit_keeps_some_ten_bytes_of_a_step(tmp_path: Path) -> None:
    events = run([Attempt(0, 4000, 4)], size=400)
    folder = written(tmp_path, events)
    for path in folder.glob("events/*.jsonl"):
        compact(path)
    del events
    with modest(2 << 20):
        assert report.check(Events(folder)).clean
        assert report.incidents(Events(folder)) == []
