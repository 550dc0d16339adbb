"""One progress line on a terminal, a few plain lines or none elsewhere."""

from __future__ import annotations

import io

import pytest

from meshmend.base import terminal
from meshmend.base.terminal import Progress


@pytest.fixture(autouse=True)
def always_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "REDRAW", 0.0)


def test_progress_is_one_line_on_a_terminal_only(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(show=True) as bar:
        bar("solving holes", 5, 10)
        bar("calibrating")
        bar("solving holes", 10, 10)
    shown = capsys.readouterr().err
    assert "5 of 10" in shown and "calibrating …" in shown
    assert "\n" not in shown and shown.endswith("\r\033[K")
    with Progress() as bar:
        bar("solving holes", 5, 10)
        bar("calibrating")
    assert capsys.readouterr() == ("", "")


def test_events_are_printed_above_the_line() -> None:
    out = io.StringIO()
    with Progress(show=True, stream=out) as bar:
        bar("training", 5, 10)
        bar.say("worker 2 died")
    before, line, after = out.getvalue().partition("  worker 2 died\n")
    assert before.endswith("\r\033[K") and line and "5 of 10" in after


def test_without_a_terminal_a_few_lines_are_printed() -> None:
    out = io.StringIO()
    with Progress(stream=out, lines=5) as bar:
        for step in range(100):
            bar(f"step {step + 1} of 100", step + 1, 100)
        bar.say("done")
    lines = out.getvalue().splitlines()
    assert [line.split()[1] for line in lines[:-1]] == ["20", "40", "60", "80", "100"] and lines[-1] == "  done"
