"""The comparison with peers counts right: from made-up notes, without any of the systems."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PEERS = Path(__file__).parent.parent / "benchmarks" / "peers"
BATCH, SLOTS = 8, 2


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The modules of the benchmark, which are scripts beside each other; not left behind for other tests."""
    monkeypatch.syspath_prepend(str(PEERS))
    names = ("envs", "systems", "count", "rig", "trial", "report")
    found = {name: __import__(name) for name in names}
    for name in names:
        monkeypatch.delitem(sys.modules, name)
    return found


def drawn(step: int, ids: list[int], epoch: int = 0, slot: int | None = None) -> dict[str, Any]:
    return {"drawn": step, "epoch": epoch, "slot": step if slot is None else slot, "ids": ids, "at": float(step)}


def done(step: int, counted: bool = True, parts: int = 2) -> dict[str, Any]:
    return {"done": step, "counted": counted, "parts": parts, "at": float(step)}


def test_nothing_is_lost_where_all_is_well(peers: dict[str, ModuleType]) -> None:
    one = [drawn(0, [0, 1, 2, 3]), done(1), drawn(1, [8, 9, 10, 11]), done(2)]
    two = [drawn(0, [4, 5, 6, 7]), done(1), drawn(1, [12, 13, 14, 15]), done(2)]
    found = peers["count"].tally([(0, one), (1, two)], BATCH)
    assert (found.due, found.counted, found.lost, found.repeated) == (16, 16, 0, 0)


def test_a_dropped_step_and_a_loader_from_the_start_show(peers: dict[str, ModuleType]) -> None:
    """A worker dies in the second batch, the other drops it; the newcomer begins with the first batch again."""
    one = [drawn(0, [0, 1, 2, 3]), done(1), drawn(1, [8, 9, 10, 11], slot=1), done(1, counted=False),
           drawn(1, [16, 17, 18, 19], slot=2), done(2)]  # fmt: skip
    dead = [drawn(0, [4, 5, 6, 7]), done(1), drawn(1, [12, 13, 14, 15])]
    new = [drawn(1, [4, 5, 6, 7], slot=0), done(2)]
    found = peers["count"].tally([(0, one), (1, dead), (1, new)], BATCH)
    # Of three batches, the second is lost, and the dead one's half of the third.
    assert (found.due, found.lost, found.repeated) == (24, 12, 4)


def test_steps_done_again_from_a_checkpoint_count_once(peers: dict[str, ModuleType]) -> None:
    before = [drawn(0, list(range(8))), done(1), drawn(1, list(range(8, 16))), done(2)]
    after = [drawn(1, list(range(8, 16))), done(2)]
    found = peers["count"].tally([(0, before), (0, after)], BATCH)
    assert (found.due, found.lost, found.repeated) == (16, 0, 0)


def ledger_of(*by: list[list[int]]) -> list[dict[str, Any]]:
    return [{"step": step, "by": ranks} for step, ranks in enumerate(by)]


def test_a_lane_that_two_have_computed_counts_once(peers: dict[str, ModuleType]) -> None:
    """Seat 1 dies in the second step after computing its lane; rank 0 does that lane again."""
    zero = [drawn(0, [0, 1, 2, 3]), drawn(1, [8, 9, 10, 11]), drawn(1, [12, 13, 14, 15])]
    one = [drawn(0, [4, 5, 6, 7]), drawn(1, [12, 13, 14, 15])]
    notes = [(0, zero), (1, one)]
    count = peers["count"].tally_by_ledger
    found = count(notes, ledger_of([[0, 1], [1, 1]], [[0, 2]]), BATCH, SLOTS)
    assert (found.due, found.counted, found.lost, found.repeated) == (16, 16, 0, 0)


@pytest.mark.parametrize(("by", "lost", "repeated"), [([[0, 1]], 4, 0), ([[0, 2], [1, 1]], 0, 4)])
def test_a_ledger_that_does_not_add_up_shows(
    peers: dict[str, ModuleType], by: list[list[int]], lost: int, repeated: int
) -> None:
    notes = [(0, [drawn(0, [0, 1, 2, 3])]), (1, [drawn(0, [4, 5, 6, 7])])]
    found = peers["count"].tally_by_ledger(notes, ledger_of(by), BATCH, SLOTS)
    assert (found.lost, found.repeated) == (lost, repeated)


def test_lines_changed(peers: dict[str, ModuleType], tmp_path: Path) -> None:
    plain, other = tmp_path / "plain.py", tmp_path / "other.py"
    plain.write_text('"""Words."""\na = 1\nb = 2\nfor _ in range(a):\n    b += 1\n')
    other.write_text(
        '"""Other\n\nwords."""\n# why\na = 1\nc = 5\nif a:\n    b = 3\n    for _ in range(a):\n        b += 1\n'
        "        notes.done(1)\n"
    )
    assert peers["count"].lines_changed(plain, plain) == 0
    # `b = 2` became three lines; indentation, comments, docstrings and notes do not count.
    assert peers["count"].lines_changed(plain, other) == 3


def test_every_script_is_made_from_its_plain_one(peers: dict[str, ModuleType]) -> None:
    systems, count = peers["systems"], peers["count"]
    for system in systems.ALL.values():
        plain, script = systems.SCRIPTS / system.plain, systems.SCRIPTS / system.script
        assert 0 < count.lines_changed(plain, script) < len(count.code_lines(script))


def test_a_wrapped_loop_changes_fewer_lines_than_ddp(peers: dict[str, ModuleType]) -> None:
    systems, count = peers["systems"], peers["count"]
    changed = {
        name: count.lines_changed(systems.SCRIPTS / system.plain, systems.SCRIPTS / system.script)
        for name, system in systems.ALL.items()
    }
    assert (changed["meshmend-wrap"], changed["ddp"], changed["torchft"]) == (5, 8, 22)


def test_step_times_need_both_ends(peers: dict[str, ModuleType]) -> None:
    rows = [{**done(step), "at": at} for step, at in ((1, 1.0), (2, 1.5), (4, 9.0), (5, 9.25))]
    assert peers["count"].step_times(rows, 1, 5) == [0.5, 0.25]


def test_the_page_shows_what_was_measured(peers: dict[str, ModuleType]) -> None:
    trial, tally = peers["trial"], peers["count"].Tally
    killed = trial.Failure("kill", 0.1, 0.2, 3.0)
    slow = trial.Failure("kill", 0.1, 1.2, 2.0, steps_lost=1)
    ended = trial.Failure("kill", 0.1, why="ended")
    hung = trial.Failure("hang", 0.1, why="none in 30 s")
    results = [
        trial.Result("ddp", 100, 4, [0.5, 0.6, 0.7], [0.1], [ended]),
        trial.Result("ddp", 100, 4, [], [], [hung]),
        trial.Result("ddp", 100, 4, [0.2], [], [], round=1),  # a round that the other has not
        trial.Result("meshmend", 100, 4, [0.3, 0.3], [0.05], [killed], tally(100, 100, 0, 0)),
        trial.Result("torchft", 100, 4, [0.9], [0.2], [slow], tally(100, 90, 15, 5)),
    ]
    about = {"versions": {"torch": "2"}, "rounds": 1, "left_out": 2, "patience": 30.0, "seconds": 60}
    page = peers["report"].page(results, about)
    assert "yes, 0.50 times as long" in page
    assert "no, 6.0 times (0.20 s and 1.20 s). A repair in no time would give 15.0 times" in page
    assert "yes, 0 lost and 0 repeated of 100" in page
    assert "| torchft, tuned | 1.20 | 12.0 | – | 2.0 | 1 | 15 | 5 | 100 |" in page
    assert "| DDP + gloo | ends | – | > 30 |" in page
    assert "rejoin, 100 MB 2.0 s (3.0)" in page  # what another does better
    assert "2 runs of later rounds were left out" in page
