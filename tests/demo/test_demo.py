"""`meshmend demo`: it keeps its promises, says so when it does not, and leaves nothing running when it is stopped."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from meshmend import JobError
from meshmend.demo import demo, story
from meshmend.job.shm import ranks_of
from meshmend.job.shm.home import runs
from meshmend.telemetry import Component, Epoch, Formed, Log, Struck, Why
from tests.jobs.jobs import processes, wait_for
from tests.report.made import Attempt, run

DEADLINE = 280
NAME = re.compile(r"demo-\d{4}-\d{6}-\d+")


def start(folder: Path, steps: int) -> subprocess.Popen[str]:
    code = f"import sys; from meshmend.demo import story; story.STEPS = {steps}; sys.exit(story.demo())"
    command = [sys.executable, "-u", "-c", code]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def left_of(name: str) -> list[object]:
    return [*ranks_of(name), *(path for path in runs() if path.name == name), *processes(name)]


@pytest.mark.jobs
def test_the_demo_keeps_its_promises(tmp_path: Path) -> None:
    process = start(tmp_path, story.STEPS)
    try:
        output, _ = process.communicate(timeout=DEADLINE)
    finally:
        process.terminate()
    assert process.returncode == 0, output
    assert "the same, bit for bit, in all" in output
    assert "audit: clean. 1,000 steps" in output
    assert len({*re.findall(r"\b[0-9a-f]{64}\b", output)}) == 1, output
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    name = NAME.findall(output)[0]
    assert (tmp_path / "runs" / name / "run.json").exists()
    assert left_of(name) == []


@pytest.mark.jobs
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_it_is_stopped(tmp_path: Path, how: signal.Signals) -> None:
    process = start(tmp_path, 200)
    assert process.stdout is not None
    name = ""
    for line in process.stdout:
        name = name or "".join(NAME.findall(line)[:1])
        if "step 40 of 200" in line and name:
            break
    assert name and processes(name)
    process.send_signal(how)
    process.communicate(timeout=DEADLINE)
    assert process.returncode == (130 if how == signal.SIGINT else -how)
    wait_for(lambda: left_of(name) == [])


@pytest.mark.jobs
def test_the_script_runs_alone(tmp_path: Path) -> None:
    command = [sys.executable, str(story.SCRIPT), "--steps", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE)
    lines = done.stdout.splitlines()
    assert [bool(story.STEP.match(line)) for line in lines] == [True, True, True, False]
    again = [*command, "--results", str(tmp_path)]
    subprocess.run(again, capture_output=True, text=True, check=True, timeout=DEADLINE)
    outcome = story.Outcome()
    outcome.take(tmp_path)
    assert 0 < outcome.accuracy < 100 and len(outcome.weights) == 1
    assert outcome.weights[0] in lines[-1], "the same weights as the other time"


def test_the_cue_for_mpirun_comes_after_both_victims_are_back() -> None:
    made = {"what": Component.WORKER, "fault": "kill", "step": story.STRIKE}
    world = {"why": Why.JOIN, "joined": [2]}
    cue, epoch = story.Cue(), Epoch(0, 1)
    begin = Formed(epoch=epoch, ranks=[0, 1, 2, 3], why=Why.BEGIN)
    assert not cue.take([begin, Struck(epoch=epoch, rank=story.FIRST, **made)], story.STRIKE)
    assert not cue.take([Struck(epoch=epoch, rank=story.SECOND, **made)], story.STRIKE)
    assert not cue.take([Formed(epoch=Epoch(0, 2), ranks=[1, 2, 3], **world)], 100)
    assert not cue.take([Formed(epoch=Epoch(0, 3), ranks=[0, 1, 2, 3], **world)], 200)
    assert not cue.take([], 199 + story.AGAIN)
    assert cue.take([], 200 + story.AGAIN)
    assert story.Cue().take([], story.LATEST)


def test_a_broken_promise_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = Log(tmp_path / "runs" / "r", "all")
    for event in run([Attempt(0, 20, 3, deaths={5: 1})]):
        log.write(event)
    alone, disturbed = story.Outcome(0, ["a" * 64], 99.0), story.Outcome(1, ["a" * 64, "b" * 64], 90.0)
    wrong = " ".join(story._verdict(alone, disturbed, tmp_path, "r"))
    for part in ("status 1", "1 kills", "1 incidents", "20 steps", "weights differ", "below 95.0 %"):
        assert part in wrong
    assert "NOT the same" in capsys.readouterr().out


def test_a_training_that_could_not_begin_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story, "_undisturbed", lambda *_: story.Outcome(0, ["a" * 64], 99.0))
    monkeypatch.setattr(story, "_disturbed", lambda *_: story.Outcome(2))
    with pytest.raises(JobError, match="ended with status 2"):
        demo(tmp_path)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story, "find_spec", lambda name: None if name in ("jax", "sklearn") else find_spec(name))
    with pytest.raises(JobError, match=r"needs jax, scikit-learn: pip install 'meshmend\[demo\]'"):
        demo()
