"""Which steps are printed, and what is said of them."""

from __future__ import annotations

import numpy as np
import pytest

import meshmend as mm
from meshmend.errors import JobError
from meshmend.job.progress import StepLines, seconds_between


def lines(progress: StepLines, steps: int) -> list[str]:
    found = [progress.line(step, {"loss": 0.5}, 4, 64) for step in range(steps)]
    return [line for line in found if line is not None]


def test_at_most_one_line_per_second_and_always_the_last_step() -> None:
    progress = StepLines()
    progress.until = 1000
    first, last = lines(progress, 1000)
    assert first.startswith("step 0 of 1000  loss 0.5  4 workers  ") and "samples/s" in first and "left" in first
    assert "  input stall 0.0 %" in first
    assert last.startswith("step 999 of 1000") and "left" not in last


@pytest.mark.parametrize(("every", "told"), [("0", 5), ("", 1), ("10s", 1), ("never", 0)])
def test_how_often_is_the_users_choice(every: str, told: int) -> None:
    assert len(lines(StepLines(every), 5)) == told


@pytest.mark.parametrize("text", ["5", "often", "-1s"])
def test_what_cannot_be_read_is_a_sentence(text: str) -> None:
    with pytest.raises(JobError):
        seconds_between(text)


def test_a_metric_that_is_not_finite_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    with mm.Job(np.ones((8, 1), np.float32), batch=8, lanes=1) as job:
        state = job.share(np.zeros(1, np.float32))
        for _ in job.steps(4):
            job.sum(lambda lane: lane.sum(0))
            job.commit(state, loss=float("nan"))
    assert capsys.readouterr().out.count("nonfinite=") == 2  # both ways out, in one sentence


def test_a_line_tells_the_share_of_the_time_that_was_waited_for_input(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("meshmend.job.progress.time.perf_counter", lambda: now[0])
    progress = StepLines("0")
    now[0] += 2.0
    progress.stalled(0.5)
    line = progress.line(0, {"loss": 0.5}, 4, 64)
    assert line is not None and "  input stall 25.0 %" in line
    now[0] += 2.0
    line = progress.line(1, {"loss": 0.5}, 4, 64)
    assert line is not None and "  input stall 0.0 %" in line
