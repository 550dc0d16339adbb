"""What a launcher writes down for the one that may attach after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshmend.run.journal import Journal, halted_before
from meshmend.run.spec import RunSpec
from meshmend.run.supervisor.actions import Finish, NoteAttempt, NoteHalt
from meshmend.run.supervisor.messages import (
    BadStart,
    HaltReason,
    Minority,
    Signalled,
    Standstill,
    StateLost,
    TooFew,
    WrongSide,
)
from meshmend.telemetry import Epoch, Halting, read


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    """That of an attempt which has begun."""
    monkeypatch.chdir(tmp_path)
    found = Journal(RunSpec(run="r", script=["train.py"], workers=2), 0)
    found.note(NoteAttempt(0))
    return found


def before() -> tuple[HaltReason, int] | None:
    return halted_before(read(Path("runs/r"), "launcher"))


@pytest.mark.parametrize(
    "reason", [Signalled("SIGTERM"), TooFew(1, 2), StateLost(), Standstill(600.0), BadStart((1, 2), 3)]
)
def test_a_halt_is_passed_on(journal: Journal, reason: HaltReason) -> None:
    assert before() is None
    journal.note(NoteHalt(reason, 1))
    assert before() == (reason, 1)
    journal.note(NoteAttempt(0, attached=True))
    assert before() == (reason, 1)


def test_what_is_over_is_not_passed_on(journal: Journal) -> None:
    journal.note(NoteHalt(Signalled("SIGTERM"), 0))
    journal.ended(Finish(75, Signalled("SIGTERM")))
    assert before() is None
    journal.note(NoteHalt(Signalled("SIGTERM"), 0))
    journal.note(NoteAttempt(1))
    assert before() is None


@pytest.mark.parametrize("reason", [Minority((0,), (0, 1)), WrongSide(("b",), (0,), (1,))])
def test_who_could_not_reach_most_workers_halts_them_for_nobody_else(journal: Journal, reason: HaltReason) -> None:
    journal.note(NoteHalt(reason, 0))
    assert before() is None


@pytest.mark.parametrize(
    ("reason", "details"), [("Sleepy", {}), ("TooFew", {"left": 1}), ("BadStart", {"ranks": "12", "workers": 3})]
)
def test_a_damaged_line_halts_nothing(reason: str, details: dict[str, object]) -> None:
    assert halted_before([Halting(epoch=Epoch(0), reason=reason, details=details)]) is None
